"""The ops that every target has: for each, the type of its result and its meaning in numpy.

All else (lang/ops.py) is written in these. Integers wrap around. Undefined are only: a shift by the
width or more, a division of integers by zero or of the least by -1, and a float that does not fit
the integer it is converted to. Short floats (f16, bf16) are stored, moved and widened, never added.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from satchel.base.dtypes import DType, bf16, f16, f32, i1
from satchel.base.errors import KernelError
from satchel.lang.ir import Attrs, Type, ptr

TypeRule = Callable[[tuple[Type, ...], dict[str, Any]], Type]


def _same(types: tuple[Type, ...], _: dict[str, Any]) -> Type:
    if any(t != types[0] for t in types):
        raise KernelError("mixes " + " with ".join(map(str, types)) + ": convert one of them")
    return types[0]


def _numbers(types: tuple[Type, ...], attrs: dict[str, Any]) -> Type:
    kind = _same(types, attrs)
    if kind.dtype in (f16, bf16):
        raise KernelError(f"does not calculate with {kind}: widen it")
    if kind.dtype in (i1, ptr):
        raise KernelError(f"takes numbers, not {kind}")
    return kind


def _integers(types: tuple[Type, ...], attrs: dict[str, Any]) -> Type:
    kind = _numbers(types, attrs)
    if kind.dtype.is_float:
        raise KernelError(f"takes integers, not {kind}")
    return kind


def _signed(types: tuple[Type, ...], attrs: dict[str, Any]) -> Type:
    kind = _numbers(types, attrs)
    if kind.dtype.kind == "u":
        raise KernelError(f"takes signed numbers, not {kind}")
    return kind


def _floats(types: tuple[Type, ...], attrs: dict[str, Any]) -> Type:
    kind = _numbers(types, attrs)
    if not kind.dtype.is_float:
        raise KernelError(f"takes floats, not {kind}")
    return kind


def _bits(types: tuple[Type, ...], attrs: dict[str, Any]) -> Type:
    kind = _same(types, attrs)
    return kind if kind.dtype is i1 else _integers(types, attrs)


def _compare(types: tuple[Type, ...], attrs: dict[str, Any]) -> Type:
    return Type(i1, _numbers(types, attrs).lanes)


def _select(types: tuple[Type, ...], attrs: dict[str, Any]) -> Type:
    cond, *both = types
    if cond != Type(i1, both[0].lanes):
        raise KernelError(f"wants one truth value a lane, not {cond} for {both[0]}")
    return _same(tuple(both), attrs)


def _convert_type(types: tuple[Type, ...], attrs: dict[str, Any]) -> Type:
    old, to = types[0].dtype, attrs["to"]
    if to is i1:
        raise KernelError("makes no truth values: compare instead")
    if {old, to} & {bf16, ptr} or (f16 in (old, to) and f32 not in (old, to)):
        raise KernelError(f"does not take {old} to {to}: cast it")
    return Type(to, types[0].lanes)


def _bitcast(types: tuple[Type, ...], attrs: dict[str, Any]) -> Type:
    to: DType = attrs["to"]
    if types[0].bits % to.bits or {types[0].dtype, to} & {i1, ptr}:
        raise KernelError(f"can't cut {types[0]} into {to}")
    return Type(to, types[0].bits // to.bits)


def _splat(types: tuple[Type, ...], attrs: dict[str, Any]) -> Type:
    if types[0].lanes != 1 or attrs["lanes"] < 2:
        raise KernelError(f"puts a scalar into lanes, not {types[0]} into {attrs['lanes']}")
    return Type(types[0].dtype, attrs["lanes"])


def _shuffle(types: tuple[Type, ...], attrs: dict[str, Any]) -> Type:
    whole = _same(types, attrs)
    if not attrs["lanes"] or not all(0 <= i < whole.lanes * len(types) for i in attrs["lanes"]):
        raise KernelError(
            f"takes lanes {attrs['lanes']}, which {len(types)} x {whole} does not have"
        )
    if (len(types) > 2 and whole.lanes > 1) or (whole.lanes == 1 and len(attrs["lanes"]) == 1):
        raise KernelError("takes one vector, two, or scalars for several lanes")
    return Type(whole.dtype, len(attrs["lanes"]))


def _offset(types: tuple[Type, ...], _: dict[str, Any]) -> Type:
    if [str(t) for t in types] != ["ptr", "i64"]:
        raise KernelError("moves a ptr by an i64, not " + " by ".join(map(str, types)))
    return types[0]


def _load(types: tuple[Type, ...], attrs: dict[str, Any]) -> Type:
    _in_memory(types[0], attrs["type"])
    return attrs["type"]


def _store(types: tuple[Type, ...], _: dict[str, Any]) -> Type:
    _in_memory(types[1], types[0])
    return Type(ptr)


EFFECTS = ("store", "prefetch")  # what makes no value


def _prefetch(types: tuple[Type, ...], _: dict[str, Any]) -> Type:
    if types[0] != Type(ptr):
        raise KernelError(f"wants a ptr, not {types[0]}")
    return Type(ptr)


def _in_memory(place: Type, kind: Type) -> None:
    if place != Type(ptr):
        raise KernelError(f"wants a ptr, not {place}")
    if kind.dtype is i1:
        raise KernelError("does not keep truth values in memory: convert them to u8")


def _const(_: tuple[Type, ...], attrs: dict[str, Any]) -> Type:
    constant_bits(attrs["type"], attrs["value"])
    return attrs["type"]


def constant_bits(kind: Type, number: Any) -> list[int]:
    """The bits of each lane of a constant: one number for all, or a tuple with one for each."""
    if not isinstance(number, tuple):
        return [bits_of(kind.dtype, number)] * kind.lanes
    each: tuple[Any, ...] = number  # pyright: ignore[reportUnknownVariableType]
    if len(each) != kind.lanes:
        raise KernelError(f"{len(each)} numbers are no {kind}")
    return [bits_of(kind.dtype, x) for x in each]


def bits_of(dtype: DType, number: Any) -> int:
    """The bits, as an unsigned integer, of a number as this type; floats are rounded to even.

    Raises KernelError where the type can't hold it.
    """
    import numpy as np

    if not dtype.is_float:
        low = -(1 << dtype.bits - 1) if dtype.kind == "i" else 0
        if not isinstance(number, int) or not low <= number < 1 << dtype.bits:
            raise KernelError(f"{number!r} is no {dtype}")
        return number & ((1 << dtype.bits) - 1)
    if not isinstance(number, int | float):
        raise KernelError(f"{number!r} is no {dtype}")
    short = f32 if dtype is bf16 else dtype
    with np.errstate(over="ignore"):
        x = np.array(number, short.numpy)
    if np.isinf(x) and abs(number) != float("inf"):
        raise KernelError(f"{number!r} is no {dtype}")
    bits = int(x.view(f"u{short.bytes}"))
    return (
        bits if dtype is not bf16 else (bits + 0x7FFF + (bits >> 16 & 1) * (number == number)) >> 16
    )


@dataclass(frozen=True)
class Primitive:
    """`meaning(*arrays, **attrs)`, on arrays of one element a lane; n_args None: any number."""

    type: TypeRule
    meaning: Callable[..., Any] | None = None
    n_args: int | None = 2


def _numpy(name: str) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        import numpy as np

        with np.errstate(all="ignore"):
            return getattr(np, name)(*args)

    return call


def _divide(a: Any, b: Any) -> Any:
    import numpy as np

    with np.errstate(all="ignore"):
        return a / b if a.dtype.kind == "f" else (a - np.fmod(a, b)) // b


def _convert(x: Any, to: DType) -> Any:
    import numpy as np

    with np.errstate(all="ignore"):
        return x.astype(to.numpy)


def _constant(type: Type, value: Any) -> Any:  # noqa: A002  (the attribute's name)
    import numpy as np

    bits = np.array(constant_bits(type, value), np.uint64)
    return bits.astype(f"u{type.dtype.bytes}").view(type.dtype.numpy)


def _pick(rule: str) -> Callable[..., Any]:
    """max(a, b) is a where a > b and else b, min likewise: NaN and signed zeros included."""

    def call(a: Any, b: Any) -> Any:
        import numpy as np

        first = np.greater(a, b) if rule == "max" else np.less(a, b)
        return cast("Any", np.where(first, a, b))

    return call


def _recut(x: Any, to: DType) -> Any:
    return x.view(to.numpy)


def _repeat(x: Any, lanes: int) -> Any:
    return x.repeat(lanes)


def _take(*args: Any, lanes: tuple[int, ...]) -> Any:
    import numpy as np

    return np.concatenate(args)[list(lanes)]


PRIMITIVES: dict[str, Primitive] = {
    "const": Primitive(_const, _constant, 0),
    "add": Primitive(_numbers, _numpy("add")),
    "sub": Primitive(_numbers, _numpy("subtract")),
    "mul": Primitive(_numbers, _numpy("multiply")),
    "div": Primitive(_numbers, _divide),  # integers: toward zero
    "rem": Primitive(_integers, _numpy("fmod")),  # with the sign of the dividend
    "and": Primitive(_bits, _numpy("bitwise_and")),
    "or": Primitive(_bits, _numpy("bitwise_or")),
    "xor": Primitive(_bits, _numpy("bitwise_xor")),
    "shl": Primitive(_integers, _numpy("left_shift")),
    "shr": Primitive(_integers, _numpy("right_shift")),  # keeps the sign of a signed type
    "min": Primitive(_numbers, _pick("min")),
    "max": Primitive(_numbers, _pick("max")),
    "abs": Primitive(_signed, _numpy("abs"), 1),  # of the least integer: itself
    "sqrt": Primitive(_floats, _numpy("sqrt"), 1),
    "lt": Primitive(_compare, _numpy("less")),
    "le": Primitive(_compare, _numpy("less_equal")),
    "eq": Primitive(_compare, _numpy("equal")),
    "ne": Primitive(_compare, _numpy("not_equal")),
    "select": Primitive(_select, _numpy("where"), 3),
    "convert": Primitive(_convert_type, _convert, 1),
    "bitcast": Primitive(_bitcast, _recut, 1),
    "splat": Primitive(_splat, _repeat, 1),
    "shuffle": Primitive(_shuffle, _take, None),
    "offset": Primitive(_offset),
    "load": Primitive(_load, None, 1),
    "store": Primitive(_store),
    "prefetch": Primitive(_prefetch, None, 1),
    "native": Primitive(
        lambda _, attrs: attrs["type"], None, None
    ),  # by LLVM's name: only rules make these
}


def result_type(op: str, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """The type of a primitive's result. Raises KernelError on types it does not take."""
    primitive = PRIMITIVES[op]
    if len(types) != (primitive.n_args or len(types)) or (op == "shuffle" and not types):
        raise KernelError(f"takes {primitive.n_args} arguments, not {len(types)}")
    try:
        return primitive.type(types, dict(attrs))
    except KeyError as e:
        raise KernelError(f"lacks its attribute {e}") from None
