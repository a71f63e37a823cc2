"""Every op and primitive, on every type it takes, over edge values: generated from the tables of
the language.

A `Case` is a small kernel over rows of edge values; a `Variant` is one lowering of it: by the rules
that a target chooses, by the meaning alone, or by one rule that is forced.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from satchel.base.dtypes import (
    DType,
    bf16,
    f16,
    f32,
    f64,
    i1,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
)  # fmt: skip
from satchel.base.errors import KernelError
from satchel.lang import ops, trace
from satchel.lang.ir import Function, Inst, Type, instructions
from satchel.lang.lower import lower
from satchel.lang.ops import OPS, Op, Rule
from satchel.lang.primitives import PRIMITIVES, result_type
from satchel.lang.target import Target
from satchel.lang.trace import Row, Tracer, V, emit, loop, tracing

Array = np.ndarray[Any, Any]
INTEGERS = (i8, i16, i32, i64, u8, u16, u32)
FLOATS = (f32, f64)
NUMBERS = (*INTEGERS, *FLOATS)
STORED = (*NUMBERS, f16, bf16)
RANDOM = np.random.default_rng(0)


@dataclass(frozen=True, eq=False)
class Case:
    """`body` on values of `types`, which are read from `rows`: flat arrays of whole tiles."""

    name: str
    types: tuple[Type, ...]
    body: Callable[..., V]
    rows: tuple[Array, ...]
    op: Op | None = None
    ulps: int = 0

    @property
    def tiles(self) -> int:
        return self.rows[0].size // self.types[0].lanes

    def trace(self, name: str = "kernel") -> tuple[Function, Type]:
        """The kernel, and the type of what it writes a tile."""
        params = (V(Type(trace.ptr)), V(Type(i64)), V(Type(i64)))
        with tracing(Tracer()) as tracer:
            slots = [
                Row(params[0], trace.ptr, constant=True).load(k) for k in range(len(self.types) + 1)
            ]
            for i in loop(params[1], params[2]):
                args = [
                    Row(slot, t.dtype, constant=True).load(i * t.lanes, t.lanes)
                    for slot, t in zip(slots, self.types, strict=False)
                ]
                Row(slots[0], u8, constant=True).at(i + (1 << 40)).prefetch()  # where nothing is
                result = self.body(*args)
                if result.dtype is i1:
                    result = trace.convert(result, u8)
                Row(slots[-1], result.dtype, constant=False).store(result, i * result.lanes)
        return Function(name, params, tracer.body()), result.type


@dataclass(frozen=True)
class Variant:
    """One way to lower a case. `how`: "best", "meaning", or the name of a rule."""

    case: Case
    how: str
    rule: Rule | None = None

    @property
    def name(self) -> str:
        return f"{self.case.name} by {self.how}"

    def lower(self, target: Target, name: str) -> Function:
        features = () if self.how == "meaning" else target.features
        return lower(self.case.trace(name)[0], features, self.rule)


def variants(target: Target) -> Iterator[Variant]:
    """All that this target can run, and something here can run for it."""
    for case in cases():
        if target.isa == "riscv" and cuts_floats(case):
            continue
        yield Variant(case, "best")
        if case.op is None:
            continue
        yield Variant(case, "meaning")
        inst = case_inst(case)
        for rule in case.op.rules:
            if rule.features <= target.features and rule.takes(inst):
                yield Variant(case, rule.name, rule)


def cuts_floats(case: Case) -> bool:
    """Whether vectors of floats become integers: vfcvt.rtz ends QEMU 7.2 (translate.c,
    decode_save_opc).
    """
    return any(
        i.op == "convert"
        and i.args[0].type.dtype.is_float
        and i.result.type.lanes > 1
        and not i.attr("to").is_float
        for i in _instructions(case)
    )


def case_inst(case: Case) -> Inst:
    """Where a case's op stands."""
    return next(i for i in _instructions(case) if case.op and i.op == case.op.name)


def _instructions(case: Case) -> Iterator[Any]:
    return instructions(case.trace()[0].body)


# ---- edge values ---------------------------------------------------------------------------------


def edges(t: DType) -> Array:
    """Extremes of a type and their neighbours, and some values between."""
    if t.kind in "iu":
        low, high = (
            (-(1 << t.bits - 1), (1 << t.bits - 1) - 1) if t.kind == "i" else (0, (1 << t.bits) - 1)
        )
        some = {low, low + 1, high, high - 1, 0, 1, 2, 3, 7, high // 3, high // 2, low + high // 3}
        if t.kind == "i":
            some |= {-1, -2, -7}
        return np.array(sorted(some)).astype(t.numpy)
    if t is bf16:
        return (edges(f32).view(np.uint32) >> 16).astype(np.uint16)
    info = np.finfo(t.numpy)
    some = [0, 1, 0.5, 1.5, 3, 1 / 3, np.pi, 2.0**11, info.max, info.tiny, info.smallest_subnormal]
    some += [info.tiny * 0.75, 1 + info.eps, np.inf]
    return np.array([*some, *(-x for x in some), np.nan], t.numpy)


def spread(t: DType, n: int) -> Array:
    """n values at random: all bit patterns alike for integers, all magnitudes for floats."""
    if t is bf16:
        return RANDOM.integers(0, 1 << 16, n).astype(np.uint16)
    if t.kind in "iu":
        return RANDOM.integers(0, 256, n * t.bytes, dtype=np.uint8).view(t.numpy)
    exponent = RANDOM.uniform(-30, 30, n) if t is not f16 else RANDOM.uniform(-20, 14, n)
    return (RANDOM.choice([-1, 1], n) * 2.0**exponent).astype(t.numpy)


def pairs(t: DType, u: DType | None = None) -> tuple[Array, Array]:
    """Every edge with every edge, then random ones; a whole number of 64 of them."""
    a, b = edges(t), edges(u or t)
    first, second = np.repeat(a, b.size), np.tile(b, a.size)
    n = -first.size % 64 + 64
    return np.concatenate([first, spread(t, n)]), np.concatenate([second, spread(u or t, n)])


def singles(t: DType, n: int = 256) -> Array:
    a = edges(t)
    return np.concatenate([a, spread(t, n - a.size)])


# ---- primitives ----------------------------------------------------------------------------------

LANES = (1, 4, 16, 64)


def widths(t: DType) -> Iterator[int]:
    """Lane counts that are worth trying: one, a short register, ours, and 64 bytes."""
    return (n for n in LANES if n <= 16 or t.bytes == 1)


def accepts(op: str, *types: Type, **attrs: Any) -> bool:
    try:
        result_type(op, types, tuple(attrs.items()))
    except KernelError:
        return False
    return True


def primitive_cases() -> Iterator[Case]:
    for op, t in itertools.product(PRIMITIVES, (*STORED, i1)):
        for n in widths(t):
            yield from _cases_of(op, Type(t, n))


def _cases_of(op: str, t: Type) -> Iterator[Case]:
    d, name = t.dtype, f"{op} {t}"
    n_args = PRIMITIVES[op].n_args
    if op == "select" and d is not i1:
        yield Case(
            name,
            (t, t),
            lambda a, b: trace.select(emit("lt", a.bits(_int(d)), b.bits(_int(d))), a, b),
            pairs(d),
        )
    elif op in ("convert", "bitcast"):
        for to in STORED:
            if (d is not i1 and to is not d and accepts(op, t, to=to) and f16 not in (d, to)) or (
                op == "bitcast" and accepts(op, t, to=to)
            ):
                row = convertible(d, to) if op == "convert" else singles(d)
                yield Case(f"{name} to {to}", (t,), lambda a, to=to: emit(op, a, to=to), (row,))
        if op == "convert" and d in INTEGERS:
            for to in NUMBERS:
                yield Case(
                    f"{op} truth x{t.lanes} of {d} to {to}",
                    (t, t),
                    lambda a, b, to=to: emit(op, a < b, to=to),
                    pairs(d),
                )
    elif op == "const" and d is not i1:
        row = singles(d, 64)
        for x in edges(d)[:12] if d is not bf16 else np.array([0, 1.5, -3e38], np.float32):
            number = int(x) if d.kind in "iu" else float(x)
            yield Case(
                f"{name} {number!r}",
                (t,),
                lambda _, number=number: trace.full(d, number, t.lanes),
                (row,),
            )
    elif op == "shuffle" and d is not i1:
        yield from _shuffles(t)
    elif op == "splat" and d is not i1 and t.lanes > 1:
        yield Case(name, (Type(d),), lambda a: trace.splat(a, t.lanes), (singles(d),))
    elif op in ("load", "store") and d is not i1:
        yield Case(name, (t,), lambda a: a, (singles(d),))
    elif op in ("and", "or", "xor") and d is i1:
        for other in (i8, i32, f32):
            body = lambda a, b: emit(op, a < b, (b < a) if op != "and" else (a <= b))  # noqa: E731
            yield Case(f"{name} of {other}", (Type(other, t.lanes),) * 2, body, pairs(other))
    elif (
        op not in ("select", "convert", "splat", "load", "offset", "native")
        and n_args
        and accepts(op, *(t,) * n_args)
    ):
        rows = pairs(d)
        yield Case(name, (t,) * n_args, lambda *a: emit(op, *a), defined(op, d, rows)[:n_args])


def _int(t: DType) -> DType:
    return {1: i8, 2: i16, 4: i32, 8: i64}[t.bytes]


def _shuffles(t: Type) -> Iterator[Case]:
    n, two = t.lanes, (t, t)
    if n == 1:
        yield Case(
            f"gather {t}",
            two,
            lambda a, b: emit("shuffle", a, b, lanes=(1, 0, 0, 1)),
            pairs(t.dtype),
        )
        return
    takes = {
        "reverse": tuple(range(n))[::-1],
        "interleave": tuple(
            k for pair in zip(range(n), range(n, 2 * n), strict=True) for k in pair
        ),
        "even": tuple(range(0, 2 * n, 2)),
        "join": tuple(range(2 * n)),
        "upper half": tuple(range(n // 2, n)),
        "one": (n - 2,),
        "one of the second": (n + 1,),
    }
    for word, lanes in takes.items():
        if max(lanes) < n:
            yield Case(
                f"{word} {t}",
                (t,),
                lambda a, lanes=lanes: emit("shuffle", a, lanes=lanes),
                (singles(t.dtype),),
            )
        else:
            yield Case(
                f"{word} {t}",
                two,
                lambda a, b, lanes=lanes: emit("shuffle", a, b, lanes=lanes),
                pairs(t.dtype),
            )


def defined(op: str, t: DType, rows: tuple[Array, Array]) -> tuple[Array, Array]:
    """Rows without what primitives.py calls undefined."""
    a, b = rows
    if op in ("shl", "shr"):
        return a, (b.view(f"u{t.bytes}") % t.bits).astype(t.numpy)
    if op in ("div", "rem") and t.kind in "iu":
        b = np.where(b == 0, np.array(3, t.numpy), b)
        return a, np.where((a == edges(t)[0]) & (b.astype(np.int64) == -1), np.array(5, t.numpy), b)
    return a, b


def convertible(t: DType, to: DType) -> Array:
    """Numbers of type t that fit the type `to`."""
    row = singles(t, 320)
    if not t.is_float or to.is_float:
        return row
    low, high = float(edges(to).min()), float(edges(to).max())
    whole = np.array([low, high, high / 2, high / 3 + 0.5, low / 2 + 0.25, 0.75], t.numpy)
    row = np.concatenate([whole, row, (edges(to) / 7.7).astype(t.numpy)])
    row = row[np.isfinite(row)]
    row = row[(np.trunc(row) >= low) & (np.trunc(row) < high)]
    return np.resize(row, 320)


# ---- ops -----------------------------------------------------------------------------------------


def f32_in(low: float, high: float, n: int) -> Array:
    return np.linspace(low, high, n).astype(np.float32)


def dot4_rows(n: int, a: list[int], b: list[int], quads: int = 1) -> tuple[Array, Array, Array]:
    """Sums, and quads of bytes from the least to the greatest of a and b: products of these and
    those between in all four places (of all quads of a sum), mixed, and at RANDOM.
    """
    size = (1024, quads, 4)
    alike = np.array(list(itertools.product(a, b)))[:, None, None].repeat(quads, 1).repeat(4, 2)
    mixed = np.stack([RANDOM.choice(a, size), RANDOM.choice(b, size)], -1)
    wild = np.stack([RANDOM.integers(min(x), max(x) + 1, size) for x in (a, b)], -1)
    both = np.concatenate([alike, mixed, wild])
    both = both[: both.shape[0] // n * n]
    sums = np.resize(edges(i32), both.shape[0])
    both = both.reshape(-1, n, quads, 4, 2).swapaxes(1, 2)
    return sums, both[..., 0].astype(np.uint8).ravel(), both[..., 1].astype(np.int8).ravel()


QUADS = ((15, 9), (7, 19), (31, 9), (63, 5), (127, 3), (255, 3))
"""Greatest codes, and of how many quads: one more than words have room for, or than twice that."""


def quads_case(n: int, top: int, quads: int) -> Case:
    """A sum of quads, among them all that have the greatest products of one sign everywhere."""
    types = (Type(i32, n), Type(u8, 4 * n * quads), Type(i8, 4 * n * quads))
    starts = range(0, 4 * n * quads, 4 * n)

    def body(s: V, a: V, b: V) -> V:
        pairs = [v[i : i + 4 * n] for i in starts for v in (a, b)]
        return OPS["dot_quads"](s, *pairs, top=top)

    rows = dot4_rows(n, [0, 1, top // 2, top - 1, top], [-128, -127, -1, 0, 1, 127], quads)
    return Case(f"dot_quads x{n} top {top}", types, body, rows, OPS["dot_quads"])


def halfs() -> Array:
    return np.arange(1 << 16, dtype=np.uint16)


def floats_near_halfs() -> Array:
    """f32 around all exponents of halfs: the halfs, the ties between them, and what is just off a
    tie.
    """
    grid = np.arange(0, 1 << 15, 37, dtype=np.uint16).view(np.float16).astype(np.float32)
    with np.errstate(all="ignore"):
        ties = (
            grid
            + np.arange(1, (1 << 15) + 1, 37).astype(np.uint16).view(np.float16).astype(np.float32)
        ) / 2
    near = np.concatenate(
        [np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(np.inf)), ties, grid]
    )
    row = np.concatenate(
        [
            near,
            -near,
            singles(f32, 512),
            RANDOM.integers(0, 1 << 32, 2048).astype(np.uint32).view(np.float32),
        ]
    )
    return np.resize(row, -(-row.size // 64) * 64)


def op_cases() -> Iterator[Case]:
    """A sample for each op by its name; a test asks that none is left out."""
    for n in (1, 4, 8, 16):
        for top in (255, 127, 15):
            types = (Type(i32, n), Type(u8, 4 * n), Type(i8, 4 * n))
            attrs = {"top": top} if top < 255 else {}
            body = lambda s, a, b, attrs=attrs: OPS["dot4"](s, a, b, **attrs)  # noqa: E731
            codes = [0, 1, top // 2, top // 2 + 1, top - 1, top]
            rows = dot4_rows(n, codes, [-128, -127, -1, 0, 1, 127])
            yield Case(f"dot4 x{n} top {top}", types, body, rows, OPS["dot4"])
        for top, quads in QUADS if n == 16 else QUADS[:1]:
            yield quads_case(n, top, quads)
        types = (Type(i32, n), Type(i8, 4 * n), Type(i8, 4 * n))
        rows = dot4_rows(n, [-128, -127, -1, 0, 1, 126, 127], [-127, -126, -1, 0, 1, 127])
        yield Case(f"dot4_signed x{n}", types, OPS["dot4_signed"], rows, OPS["dot4_signed"])
        for t in FLOATS:
            three = (*pairs(t), np.resize(spread(t, 333), pairs(t)[0].size))
            yield Case(f"muladd {t}x{n}", (Type(t, n),) * 3, OPS["muladd"], three, OPS["muladd"], 1)
        row = np.concatenate(
            [f32_in(-130, 127.4, 4000), edges(f32)[edges(f32) < 127], f32_in(-1e-3, 1e-3, 64)]
        )
        yield Case(
            f"exp2 x{n}", (Type(f32, n),), OPS["exp2"], (np.resize(row, 4096),), OPS["exp2"], 2
        )
        for t in (f16, bf16):
            row = halfs() if n == 16 else halfs()[::101][:512].copy()
            yield Case(
                f"widen {t}x{n}", (Type(t, n),), OPS["widen"], (row.view(t.numpy),), OPS["widen"]
            )
            row = floats_near_halfs() if n == 16 else floats_near_halfs()[-512:]
            narrow = lambda x, t=t: OPS["narrow"](x, to=t)  # noqa: E731
            yield Case(f"narrow {t}x{n}", (Type(f32, n),), narrow, (row,), OPS["narrow"])


def written_cases() -> Iterator[Case]:
    """What is written in ops."""
    sixteen = Type(f32, 16)
    yield Case("exp", (sixteen,), ops.exp, (f32_in(-100, 88, 1024),), ulps=2)
    yield Case("round_i32", (sixteen,), ops.round_i32, (np.round(f32_in(-4e6, 4e6, 1024) * 4) / 4,))
    yield Case("sum", (sixteen,), lambda x: x.sum(), (spread(f32, 256),))
    yield Case("top", (sixteen,), lambda x: x.top(), (spread(f32, 256),))
    yield Case("splat_bytes", (Type(i32),), lambda x: ops.splat_bytes(x, 16), (singles(i32),))
    yield Case("clamp", (sixteen,), lambda x: ops.clamp(x, -1, 1), (singles(f32),))
    for a, b in itertools.permutations((f16, bf16, f32, i8, i32), 2):
        row = (
            convertible(a, b)
            if a not in (f16, bf16) or b.is_float
            else np.resize(np.array([0, 1, 2.5, -3.5], np.float16), 64)
        )
        if a is bf16 and not b.is_float:
            row = np.resize(np.array([0, 0x3F80, 0xC060], np.uint16), 64)
        yield Case(
            f"cast {a} to {b}",
            (Type(a, 16),),
            lambda x, b=b: ops.cast(x, b),
            (np.resize(row, 320),),
        )


@cache
def cases() -> tuple[Case, ...]:
    return (*primitive_cases(), *op_cases(), *written_cases())
