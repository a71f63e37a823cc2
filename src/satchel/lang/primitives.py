"""The ops that every target has: for each, the type of its result and its meaning in numpy.

All else (lang/ops.py) is written in these. Integers wrap around; nothing is undefined but a shift by the width or more, a
division by zero, and a float that does not fit the integer it is converted to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from satchel.base.dtypes import DType, i1
from satchel.base.errors import KernelError
from satchel.lang.ir import Attrs, Type, ptr

TypeRule = Callable[[tuple[Type, ...], dict[str, Any]], Type]


def _same(types: tuple[Type, ...], _: dict[str, Any]) -> Type:
    if any(t != types[0] for t in types):
        raise KernelError("mixes " + " with ".join(map(str, types)) + ": convert one of them")
    return types[0]


def _compare(types: tuple[Type, ...], attrs: dict[str, Any]) -> Type:
    return Type(i1, _same(types, attrs).lanes)


def _select(types: tuple[Type, ...], attrs: dict[str, Any]) -> Type:
    cond, *both = types
    if cond != Type(i1, both[0].lanes):
        raise KernelError(f"select wants one truth value a lane, not {cond} for {both[0]}")
    return _same(tuple(both), attrs)


def _to(types: tuple[Type, ...], attrs: dict[str, Any]) -> Type:
    return Type(attrs["to"], types[0].lanes)


def _bitcast(types: tuple[Type, ...], attrs: dict[str, Any]) -> Type:
    to: DType = attrs["to"]
    if types[0].bits % to.bits:
        raise KernelError(f"{types[0]} can't be cut into {to}")
    return Type(to, types[0].bits // to.bits)


def _splat(types: tuple[Type, ...], attrs: dict[str, Any]) -> Type:
    return Type(types[0].dtype, attrs["lanes"])


def _shuffle(types: tuple[Type, ...], attrs: dict[str, Any]) -> Type:
    whole = _same(types, attrs)
    if not all(0 <= i < whole.lanes * len(types) for i in attrs["lanes"]):
        raise KernelError(f"shuffle takes a lane that {whole} does not have")
    return Type(whole.dtype, len(attrs["lanes"]))


def _offset(types: tuple[Type, ...], _: dict[str, Any]) -> Type:
    if types[0].dtype is not ptr or str(types[1]) != "i64":
        raise KernelError(f"an offset moves a ptr by an i64, not {types[0]} by {types[1]}")
    return types[0]


@dataclass(frozen=True)
class Primitive:
    """`meaning(*arrays, **attrs)`, on arrays of one element a lane."""

    type: TypeRule
    meaning: Callable[..., Any] | None = None


def _numpy(name: str) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        import numpy as np

        with np.errstate(all="ignore"):
            return getattr(np, name)(*args)

    return call


def _wrapped_divide(a: Any, b: Any) -> Any:
    import numpy as np

    with np.errstate(all="ignore"):
        return a / b if a.dtype.kind == "f" else (np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))).astype(a.dtype)


def _convert(x: Any, to: DType) -> Any:
    import numpy as np

    with np.errstate(all="ignore"):
        return x.astype(to.numpy)


def _pick(rule: str) -> Callable[..., Any]:
    """max(a, b) is a where a > b and else b, min likewise: NaN and signed zeros included."""

    def call(a: Any, b: Any) -> Any:
        import numpy as np

        return np.where(a > b if rule == "max" else a < b, a, b)

    return call


def _take(*args: Any, lanes: tuple[int, ...]) -> Any:
    import numpy as np

    return np.concatenate(args)[list(lanes)]


PRIMITIVES: dict[str, Primitive] = {
    "const": Primitive(lambda _, attrs: attrs["type"]),
    "add": Primitive(_same, _numpy("add")),
    "sub": Primitive(_same, _numpy("subtract")),
    "mul": Primitive(_same, _numpy("multiply")),
    "div": Primitive(_same, _wrapped_divide),  # integers: toward zero
    "rem": Primitive(_same, _numpy("fmod")),
    "and": Primitive(_same, _numpy("bitwise_and")),
    "or": Primitive(_same, _numpy("bitwise_or")),
    "xor": Primitive(_same, _numpy("bitwise_xor")),
    "shl": Primitive(_same, _numpy("left_shift")),
    "shr": Primitive(_same, _numpy("right_shift")),  # keeps the sign of a signed type
    "min": Primitive(_same, _pick("min")),
    "max": Primitive(_same, _pick("max")),
    "abs": Primitive(_same, _numpy("abs")),
    "sqrt": Primitive(_same, _numpy("sqrt")),
    "lt": Primitive(_compare, _numpy("less")),
    "le": Primitive(_compare, _numpy("less_equal")),
    "eq": Primitive(_compare, _numpy("equal")),
    "ne": Primitive(_compare, _numpy("not_equal")),
    "select": Primitive(_select, _numpy("where")),
    "convert": Primitive(_to, _convert),
    "bitcast": Primitive(_bitcast, lambda x, to: x.view(to.numpy)),
    "splat": Primitive(_splat, lambda x, lanes: x.repeat(lanes)),
    "shuffle": Primitive(_shuffle, _take),
    "offset": Primitive(_offset),
    "load": Primitive(lambda _, attrs: attrs["type"]),
    "store": Primitive(lambda _, __: Type(ptr)),
    "native": Primitive(lambda _, attrs: attrs["type"]),  # an instruction by LLVM's name: only rules make these
}


def result_type(op: str, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """The type of a primitive's result. Raises KernelError on types it does not take."""
    return PRIMITIVES[op].type(types, dict(attrs))
