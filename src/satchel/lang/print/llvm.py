"""A lowered function as LLVM IR text. One ABI: `void name(ptr args, i64 lo, i64 hi)`."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from satchel.base.dtypes import DType, bf16, f16, f32, f64
from satchel.base.errors import KernelError
from satchel.lang.ir import Function, Inst, Loop, Stmt, Type, Value
from satchel.lang.primitives import constant_bits

_NAMES = {"f32": "float", "f64": "double", "ptr": "ptr"}
_SHORT = {f16: "half", bf16: "bfloat"}
"""Short floats are integers to LLVM (whose own are legal on few targets) but where an instruction
takes them.
"""


def scalar(t: DType) -> str:
    return _NAMES.get(t.name) or f"i{t.bits}"


def _vector(lanes: int, element: str) -> str:
    return f"<{lanes} x {element}>" if lanes > 1 else element


def type_text(t: Type) -> str:
    return _vector(t.lanes, scalar(t.dtype))


def own_type(t: Type) -> str:
    """The type as LLVM's instructions for it want it: short floats, too, by their name."""
    return _vector(t.lanes, _SHORT.get(t.dtype) or scalar(t.dtype))


def suffix(t: Type) -> str:
    """How LLVM writes a type in an overloaded intrinsic's name: .v16f32."""
    return "." + (f"v{t.lanes}" if t.lanes > 1 else "") + t.dtype.name.replace("u", "i")


def literal(t: DType, bits: int) -> str:
    if t.name == "i1":
        return "true" if bits else "false"
    if t is f64:
        return f"0x{bits:016X}"
    if t is f32:  # LLVM writes a float as the double of the same value
        (x,) = struct.unpack("<f", struct.pack("<I", bits))
        return "0x" + struct.pack(">d", x).hex().upper()
    return str(bits - (1 << t.bits) if t.kind == "i" and bits >> t.bits - 1 else bits)


def constant(t: Type, x: Any) -> str:
    each = [literal(t.dtype, bits) for bits in constant_bits(t, x)]
    if t.lanes == 1:
        return each[0]
    return "<" + ", ".join(f"{scalar(t.dtype)} {e}" for e in each) + ">"


def _arithmetic(op: str) -> Callable[[DType], str]:
    signed = {"div": "sdiv", "rem": "srem", "shr": "ashr"}.get(op, op)
    unsigned = {"div": "udiv", "rem": "urem", "shr": "lshr"}.get(op, op)
    return lambda t: f"f{op}" if t.is_float else signed if t.kind == "i" else unsigned


def _compare(op: str) -> Callable[[DType], str]:
    order = op in ("lt", "le")
    return lambda t: (
        f"fcmp {'une' if op == 'ne' else 'o' + op}"
        if t.is_float
        else f"icmp {('s' if t.kind == 'i' else 'u') if order else ''}{op}"
    )


INFIX: dict[str, Callable[[DType], str]] = {
    **{
        op: _arithmetic(op)
        for op in ("add", "sub", "mul", "div", "rem", "and", "or", "xor", "shl", "shr")
    },
    **{op: _compare(op) for op in ("lt", "le", "eq", "ne")},
}


def conversion(a: DType, b: DType) -> str:
    """LLVM's word for a change of number type."""
    if a.is_float and b.is_float:
        return "fpext" if b.bits > a.bits else "fptrunc"
    if a.is_float:
        return "fptosi" if b.kind == "i" else "fptoui"
    if b.is_float:
        return "sitofp" if a.kind == "i" else "uitofp"
    return "trunc" if b.bits < a.bits else "sext" if a.kind == "i" else "zext"


class Printer:
    """Writes one function; constants and changes of sign only take no line of their own."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.names: dict[Value, str] = {}
        self.lines: list[str] = []
        self.declared: set[str] = set()
        self.block = "entry"
        self.count = 0

    def fresh(self, kind: str = "v") -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def typed(self, value: Value) -> str:
        return f"{type_text(value.type)} {self.names[value]}"

    def line(self, right: str) -> str:
        """Write `%v = right`; the name."""
        name = "%" + self.fresh()
        self.lines.append(f"  {name} = {right}")
        return name

    def own(self, value: Value) -> str:
        """A value with its type, in the form that instructions for its type take."""
        wanted = own_type(value.type)
        if wanted == type_text(value.type):
            return self.typed(value)
        return f"{wanted} {self.line(f'bitcast {self.typed(value)} to {wanted}')}"

    def stored(self, t: Type, right: str) -> str:
        """The instruction whose result, made by `right` in t's own form, is in the form that we
        keep.
        """
        if own_type(t) == type_text(t):
            return right
        return f"bitcast {own_type(t)} {self.line(right)} to {type_text(t)}"

    def call(self, name: str, t: Type, args: tuple[Value, ...], *more: str) -> str:
        """Call an intrinsic; `more` are arguments as LLVM's text."""
        kinds = [*(own_type(a.type) for a in args), *(m.split()[0] for m in more)]
        self.declared.add(f"declare {own_type(t)} @{name}({', '.join(kinds)})")
        given = ", ".join([*map(self.own, args), *more])
        return self.stored(t, f"call {own_type(t)} @{name}({given})")

    def text(self) -> str:
        """The function's definition; what it calls is in `declared` then."""
        params = [f"%a{i}" for i in range(len(self.function.params))]
        self.names.update(zip(self.function.params, params, strict=True))
        self.body(self.function.body)
        signature = ", ".join(self.typed(p) for p in self.function.params)
        head = f"define void @{self.function.name}({signature}) nounwind {{"
        return "\n".join([head, "entry:", *self.lines, "  ret void", "}"])

    def body(self, body: tuple[Stmt, ...]) -> None:
        for s in body:
            if isinstance(s, Loop):
                self.loop(s)
            elif s.op == "store":
                x, place = map(self.typed, s.args)
                self.lines.append(f"  store {x}, {place}, align {_align(s.args[0].type)}")
            elif s.op == "prefetch":
                self.declared.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
                place = self.typed(s.args[0])
                self.lines.append(f"  call void @llvm.prefetch.p0({place}, i32 0, i32 3, i32 1)")
            else:
                self.inst(s)

    def inst(self, s: Inst) -> None:
        assert s.result is not None
        if s.op == "const":
            self.names[s.result] = constant(s.result.type, s.attr("value"))
        elif s.op in ("convert", "bitcast") and type_text(s.args[0].type) == type_text(
            s.result.type
        ):
            self.names[s.result] = self.names[s.args[0]]
        else:
            right = self.right_side(s, s.result.type)
            self.names[s.result] = self.line(right)

    def right_side(self, s: Inst, t: Type) -> str:
        """The instruction that makes the result."""
        a = s.args
        match s.op:
            case op if op in INFIX:
                return f"{INFIX[op](a[0].type.dtype)} {self.typed(a[0])}, {self.names[a[1]]}"
            case "min" | "max":
                x, y = (a[0], a[1]) if s.op == "min" else (a[1], a[0])
                test = self.line(f"{INFIX['lt'](t.dtype)} {self.typed(x)}, {self.names[y]}")
                kind = _vector(t.lanes, "i1")
                return f"select {kind} {test}, {self.typed(a[0])}, {self.typed(a[1])}"
            case "select":
                return "select " + ", ".join(map(self.typed, a))
            case "abs" | "sqrt" if t.dtype.is_float:
                return self.call(f"llvm.{'fabs' if s.op == 'abs' else 'sqrt'}{suffix(t)}", t, a)
            case "abs":
                return self.call(f"llvm.abs{suffix(t)}", t, a, "i1 false")
            case "convert":
                word = conversion(a[0].type.dtype, t.dtype)
                return self.stored(t, f"{word} {self.own(a[0])} to {own_type(t)}")
            case "bitcast":
                return f"bitcast {self.typed(a[0])} to {type_text(t)}"
            case "splat" | "shuffle":
                return self.rearrange(s)
            case "offset":
                return f"getelementptr i8, {self.typed(a[0])}, {self.typed(a[1])}"
            case "load":
                mark = ", !invariant.load !0" if s.attr("constant") else ""
                return f"load {type_text(t)}, {self.typed(a[0])}, align {_align(t)}{mark}"
            case "native":
                return self.call(s.attr("name").replace("[]", suffix(t)), t, a)
            case _:
                raise KernelError(f"{self.function.name}: {s.op} has no LLVM form: lower it first")

    def rearrange(self, s: Inst) -> str:
        kind = s.args[0].type
        if s.op == "splat":
            n = s.attr("lanes")
            wide = f"<{n} x {scalar(kind.dtype)}>"
            first = self.line(f"insertelement {wide} poison, {self.typed(s.args[0])}, i32 0")
            return f"shufflevector {wide} {first}, {wide} poison, <{n} x i32> zeroinitializer"
        lanes: tuple[int, ...] = s.attr("lanes")
        if kind.lanes == 1:
            return self.gather(s.args, lanes)
        if len(lanes) == 1:
            which, lane = divmod(lanes[0], kind.lanes)
            return f"extractelement {self.typed(s.args[which])}, i32 {lane}"
        first, *rest = map(self.typed, s.args)
        other = rest[0] if rest else f"{type_text(kind)} poison"
        mask = ", ".join(f"i32 {i}" for i in lanes)
        return f"shufflevector {first}, {other}, <{len(lanes)} x i32> <{mask}>"

    def gather(self, args: tuple[Value, ...], lanes: tuple[int, ...]) -> str:
        """Scalars into a vector, one by one."""
        wide, last = f"<{len(lanes)} x {scalar(args[0].type.dtype)}>", "poison"
        steps = [f"{self.typed(args[lane])}, i32 {k}" for k, lane in enumerate(lanes)]
        for step in steps[:-1]:
            last = self.line(f"insertelement {wide} {last}, {step}")
        return f"insertelement {wide} {last}, {steps[-1]}"

    def loop(self, s: Loop) -> None:
        before, head, inside, after = self.block, *(self.fresh(k) for k in ("head", "body", "done"))
        for value in (s.index, *s.params):
            self.names[value] = "%" + self.fresh()
        self.names.update((r, self.names[p]) for r, p in zip(s.results, s.params, strict=True))
        lo, hi, step = (self.names[b] for b in s.bounds)
        outer, self.lines = self.lines, []
        self.block = inside
        self.body(s.body)
        following, index = "%" + self.fresh(), self.names[s.index]
        phis = [(index, "i64", lo, following)] + [
            (self.names[p], type_text(p.type), self.names[i], self.names[y])
            for p, i, y in zip(s.params, s.inits, s.yields, strict=True)
        ]
        test = "%" + self.fresh()
        top = [f"  {n} = phi {t} [ {i}, %{before} ], [ {y}, %{self.block} ]" for n, t, i, y in phis]
        start = [f"  br label %{head}", f"{head}:", *top, f"  {test} = icmp slt i64 {index}, {hi}"]
        end = [
            f"  {following} = add i64 {index}, {step}",
            f"  br label %{head}, !llvm.loop !1",
            f"{after}:",
        ]
        self.lines = [
            *outer,
            *start,
            f"  br i1 {test}, label %{inside}, label %{after}",
            f"{inside}:",
            *self.lines,
            *end,
        ]
        self.block = after


def _align(t: Type) -> int:
    """Blocks of a file begin anywhere a half may: what is wider is not aligned to more than 4."""
    return min(4, t.dtype.bytes)


_FLAGS = '!0 = !{}\n!1 = distinct !{!1, !2}\n!2 = !{!"llvm.loop.unroll.disable"}\n'


def llvm_text(*functions: Function) -> str:
    """A module of these functions. Raises KernelError on an op that is not lowered."""
    printers = [Printer(f) for f in functions]
    texts = [p.text() for p in printers]
    declared = sorted(set[str]().union(*(p.declared for p in printers)))
    return "\n".join([*texts, *declared, _FLAGS])
