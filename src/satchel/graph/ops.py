"""The graph's ops: each a shape rule and a meaning in numpy, in whatever float type it is given.

Passes add ops of their own with the same decorator. Arrays have the tokens first: [tokens, dim], or
[tokens, heads, head_dim] between split_heads and join_heads.
"""

# ruff: noqa: ARG001 (a shape rule names all attrs of its op, whether it needs their values or not)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from satchel.graph.node import Attr, Node, Shape, ShapeError
from satchel.graph.rope import Scaling, frequencies

Floats = NDArray[np.floating]
Ints = NDArray[np.integer]


@dataclass(frozen=True)
class Op:
    """A kind of node. `shape` maps the operands' shapes, `meaning` their arrays; both take attrs.

    `rowwise`: row t of the result depends on row t alone of those operands that have a row a token,
    so picking rows before it or after it is the same.
    """

    name: str
    shape: Callable[..., Shape]
    meaning: Callable[..., Any]
    dtype: str
    rowwise: bool


OPS: dict[str, Op] = {}


def op(
    shape: Callable[..., Shape], dtype: str = "f32", rowwise: bool = True
) -> Callable[[Callable[..., Any]], Op]:
    """Enter a function into the table as the meaning of the op of its name."""

    def enter(meaning: Callable[..., Any]) -> Op:
        name = meaning.__name__
        if name in OPS:
            raise ValueError(f"op {name} is defined twice")
        OPS[name] = Op(name, shape, meaning, dtype, rowwise)
        return OPS[name]

    return enter


def make(op: str, *inputs: Node, layer: int | None = None, **attrs: Attr) -> Node:
    """A node of the table's op, its shape worked out. Raises ShapeError if operands don't fit."""
    if op not in OPS:
        raise ShapeError(f"there is no graph op {op!r}")
    rule = OPS[op]
    try:
        shape = rule.shape(*(node.shape for node in inputs), **attrs)
    except TypeError as error:  # a wrong number of operands, or an attr that the op does not have
        raise ShapeError(f"{op}: {error}") from error
    return Node(op, inputs, shape, rule.dtype, attrs, layer)


def same(x: Shape) -> Shape:
    """The shape rule of ops of one operand and no attrs that keep its shape."""
    return x


def fit(condition: bool, what: str, *shapes: Shape) -> None:
    """Raise ShapeError, with the shapes, unless `condition` holds."""
    if not condition:
        raise ShapeError(f"{what}, not of {' and '.join(str(list(shape)) for shape in shapes)}")


def _embed_shape(table: Shape, tokens: Shape) -> Shape:
    fit(len(table) == 2 and len(tokens) == 1, "embed takes rows of a table", table, tokens)
    return (tokens[0], table[1])


@op(_embed_shape)
def embed(table: Floats, tokens: Ints) -> Floats:
    """The table's rows at `tokens`."""
    return table[tokens]


def _linear_shape(x: Shape, weight: Shape, bias: Shape | None = None) -> Shape:
    fit(len(weight) == 2 and x[-1] == weight[1], "linear needs rows as long as x's", x, weight)
    fit(bias is None or bias == weight[:1], "linear needs a bias a row", weight, bias or ())
    return (*x[:-1], weight[0])


@op(_linear_shape)
def linear(x: Floats, weight: Floats, bias: Floats | None = None) -> Floats:
    """x @ weight.T + bias; weight is [out, in]."""
    y = x @ weight.T
    return y if bias is None else y + bias


def _norm_shape(x: Shape, weight: Shape, eps: float) -> Shape:
    fit(weight == x[-1:], "rms_norm needs a weight for each of the last axis", x, weight)
    return x


@op(_norm_shape)
def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """x / sqrt(mean(x * x) + eps) * weight, over the last axis."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(eps)) * weight


def _split_shape(x: Shape, n: int) -> Shape:
    width = x[-1]
    fit(len(x) == 2 and isinstance(width, int) and width % n == 0, f"split_heads into {n}", x)
    assert isinstance(width, int)
    return (x[0], n, width // n)


@op(_split_shape)
def split_heads(x: Floats, n: int) -> Floats:
    """[tokens, n * head_dim] -> [tokens, n, head_dim]."""
    return x.reshape(len(x), n, -1)


def _join_shape(x: Shape) -> Shape:
    fit(len(x) == 3 and all(isinstance(d, int) for d in x[1:]), "join_heads needs heads", x)
    return (x[0], int(x[1]) * int(x[2]))


@op(_join_shape)
def join_heads(x: Floats) -> Floats:
    """[tokens, n, head_dim] -> [tokens, n * head_dim]."""
    return x.reshape(len(x), -1)


def _rope_shape(
    x: Shape,
    positions: Shape,
    factors: Shape | None = None,
    *,
    theta: float,
    dims: int,
    pairs: str,
    **scaling: Any,
) -> Shape:
    Scaling(**scaling)
    fit(len(x) == 3 and positions == x[:1], "rope needs heads, each token's position", x, positions)
    fit(dims % 2 == 0 and dims <= int(x[2]), f"rope turns {dims} dims of a head", x)
    fit(
        factors is None or factors == (dims // 2,), "rope needs factors for pairs", x, factors or ()
    )
    fit(pairs in ("adjacent", "halves"), f"rope knows no {pairs!r} pairs", x)
    return x


@op(_rope_shape)
def rope(
    x: Floats,
    positions: Ints,
    factors: Floats | None = None,
    *,
    theta: float,
    dims: int,
    pairs: str,
    **scaling: Any,
) -> Floats:
    """Turn pairs of each head's first `dims` by angles that grow with the position.

    `pairs`: "adjacent" (2i, 2i + 1) or "halves" (i, i + dims / 2). Other attrs: rope.Scaling.
    """
    stretch = Scaling(**scaling)
    angles = positions[:, None] * frequencies(dims, theta, stretch, factors)
    cos = (np.cos(angles) * stretch.magnitude).astype(x.dtype)[:, None]
    sin = (np.sin(angles) * stretch.magnitude).astype(x.dtype)[:, None]
    half = dims // 2
    first, second = (
        (slice(0, dims, 2), slice(1, dims, 2))
        if pairs == "adjacent"
        else (slice(0, half), slice(half, dims))
    )
    y = x.copy()
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., first] * sin + x[..., second] * cos
    return y


def _attention_shape(
    q: Shape,
    k: Shape,
    v: Shape,
    positions: Shape,
    *,
    cache: int,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Shape:
    fit(len(q) == len(k) == len(v) == 3 and positions == q[:1], "attention needs heads", q, k, v)
    fit(k[:2] == v[:2] and q[2] == k[2], "attention needs heads of one length", q, k, v)
    fit(int(q[1]) % int(k[1]) == 0, "attention needs a whole number of q heads a k head", q, k)
    return (*q[:2], v[2])


@op(_attention_shape, rowwise=False)
def attention(
    q: Floats,
    k: Floats,
    v: Floats,
    positions: Ints,
    *,
    cache: int,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Floats:
    """Each token's mix of the values at or before its position, over one whole sequence.

    Grouped heads: q head h reads kv head h // (q heads / kv heads). With `window`, keys of `window`
    or more positions ago are out of sight. `softcap` bounds scores before the mask. `cache` is the
    number of the kv cache that holds k and v; the meaning does not need it.
    """
    group = q.shape[1] // k.shape[1]
    ago = positions[:, None] - positions[None, :]
    hidden = (ago < 0) if window is None else (ago < 0) | (ago >= window)
    seen = np.empty((*q.shape[:2], v.shape[2]), q.dtype)
    for head in range(q.shape[1]):  # one head at a time: tokens * tokens is memory enough
        scores = q[:, head] @ k[:, head // group].T * q.dtype.type(scale)
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        scores[hidden] = -np.inf
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        seen[:, head] = scores @ v[:, head // group] / scores.sum(axis=-1, keepdims=True)
    return seen


@op(same)
def silu(x: Floats) -> Floats:
    """x * sigmoid(x)."""
    return x * (0.5 + 0.5 * np.tanh(0.5 * x))  # this sigmoid can't overflow


@op(same)
def gelu(x: Floats) -> Floats:
    """The tanh form of x * normal_cdf(x)."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi).astype(x.dtype) * (x + 0.044715 * x**3)))


def _pair_shape(x: Shape, y: Shape) -> Shape:
    fit(x == y, "elementwise ops need equal shapes", x, y)
    return x


@op(_pair_shape)
def add(x: Floats, y: Floats) -> Floats:
    return x + y


@op(_pair_shape)
def mul(x: Floats, y: Floats) -> Floats:
    return x * y


def _scale_shape(x: Shape, by: float) -> Shape:
    return x


@op(_scale_shape)
def scale(x: Floats, by: float) -> Floats:
    return x * x.dtype.type(by)


def _softcap_shape(x: Shape, cap: float) -> Shape:
    return x


@op(_softcap_shape)
def softcap(x: Floats, cap: float) -> Floats:
    """cap * tanh(x / cap): x, bounded smoothly."""
    return cap * np.tanh(x / cap)


def _pick_shape(x: Shape, wanted: Shape) -> Shape:
    fit(len(wanted) == 1, "pick takes rows", x, wanted)
    return (*wanted, *x[1:])


@op(_pick_shape, rowwise=False)
def pick(x: Floats, wanted: Ints) -> Floats:
    """The rows of x at `wanted`: those whose logits are asked for."""
    return x[wanted]
