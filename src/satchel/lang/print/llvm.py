"""A lowered function as LLVM IR text. One ABI: `void name(ptr args, i64 lo, i64 hi)`."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from satchel.base.dtypes import DType, f32
from satchel.base.errors import KernelError
from satchel.lang.ir import Function, Inst, Loop, Stmt, Type, Value

_NAMES = {"f16": "half", "bf16": "bfloat", "f32": "float", "f64": "double", "ptr": "ptr"}


def scalar(t: DType) -> str:
    return _NAMES.get(t.name) or f"i{t.bits}"


def type_text(t: Type) -> str:
    return f"<{t.lanes} x {scalar(t.dtype)}>" if t.lanes > 1 else scalar(t.dtype)


def suffix(t: Type) -> str:
    """How LLVM writes a type in an overloaded intrinsic's name: .v16f32."""
    return "." + (f"v{t.lanes}" if t.lanes > 1 else "") + t.dtype.name.replace("u", "i")


def literal(t: DType, x: Any) -> str:
    if t.name == "i1":
        return "true" if x else "false"
    if not t.is_float:
        return str(int(x))
    rounded = struct.unpack("f", struct.pack("f", x))[0] if t is f32 else x
    return "0x" + struct.pack(">d", rounded).hex().upper()  # LLVM writes a float's value as a double's bits


def constant(t: Type, x: Any) -> str:
    if t.lanes == 1:
        return literal(t.dtype, x)
    items = x if isinstance(x, tuple) else (x,) * t.lanes
    return "<" + ", ".join(f"{scalar(t.dtype)} {literal(t.dtype, e)}" for e in items) + ">"


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
    **{op: _arithmetic(op) for op in ("add", "sub", "mul", "div", "rem", "and", "or", "xor", "shl", "shr")},
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

    def call(self, name: str, result: Type, args: tuple[Value, ...]) -> str:
        self.declared.add(f"declare {type_text(result)} @{name}({', '.join(type_text(a.type) for a in args)})")
        return f"call {type_text(result)} @{name}({', '.join(map(self.typed, args))})"

    def text(self, target_lines: str = "") -> str:
        params = [f"%a{i}" for i in range(len(self.function.params))]
        self.names.update(zip(self.function.params, params, strict=True))
        self.body(self.function.body)
        signature = ", ".join(self.typed(p) for p in self.function.params)
        out = [target_lines, f"define void @{self.function.name}({signature}) nounwind {{", "entry:"]
        return "\n".join([*out, *self.lines, "  ret void", "}", *sorted(self.declared), "!0 = !{}", _UNROLL, ""])

    def body(self, body: tuple[Stmt, ...]) -> None:
        for s in body:
            if isinstance(s, Loop):
                self.loop(s)
            elif s.op == "store":
                self.lines.append(f"  store {self.typed(s.args[0])}, {self.typed(s.args[1])}, align {_align(s.args[0])}")
            else:
                self.inst(s)

    def inst(self, s: Inst) -> None:
        assert s.result is not None
        right = self.right_side(s, s.result.type)
        if s.op == "const" or not right:
            self.names[s.result] = constant(s.attr("type"), s.attr("value")) if s.op == "const" else self.names[s.args[0]]
            return
        self.names[s.result] = name = "%" + self.fresh()
        self.lines.append(f"  {name} = {right}")

    def right_side(self, s: Inst, t: Type) -> str:
        """The instruction; empty where the bits stay as they are."""
        a = s.args
        match s.op:
            case "const":
                return ""
            case op if op in INFIX:
                return f"{INFIX[op](a[0].type.dtype)} {self.typed(a[0])}, {self.names[a[1]]}"
            case "min" | "max":
                order = INFIX["lt"](t.dtype)
                x, y = (a[0], a[1]) if s.op == "min" else (a[1], a[0])
                test = "%" + self.fresh()
                self.lines.append(f"  {test} = {order} {self.typed(x)}, {self.names[y]}")
                return f"select {type_text(Type(_BOOL, t.lanes))} {test}, {self.typed(a[0])}, {self.typed(a[1])}"
            case "select":
                return "select " + ", ".join(map(self.typed, a))
            case "abs" | "sqrt" if t.dtype.is_float:
                return self.call(f"llvm.{'fabs' if s.op == 'abs' else 'sqrt'}{suffix(t)}", t, a)
            case "abs":
                self.declared.add(f"declare {type_text(t)} @llvm.abs{suffix(t)}({type_text(t)}, i1)")
                return f"call {type_text(t)} @llvm.abs{suffix(t)}({self.typed(a[0])}, i1 false)"
            case "convert" | "bitcast":
                return self.change(s, t)
            case "splat" | "shuffle":
                return self.rearrange(s)
            case "offset":
                return f"getelementptr i8, {self.typed(a[0])}, {self.typed(a[1])}"
            case "load":
                mark = ", !invariant.load !0" if s.attr("constant") else ""
                return f"load {type_text(t)}, {self.typed(a[0])}, align {min(4, t.dtype.bytes)}{mark}"
            case "native":
                return self.call(s.attr("name").replace("[]", suffix(t)), t, a)
        raise KernelError(f"{self.function.name}: {s.op} has no LLVM form: lower it first")

    def change(self, s: Inst, t: Type) -> str:
        old = s.args[0].type
        if type_text(old) == type_text(t):
            return ""
        word = "bitcast" if s.op == "bitcast" else conversion(old.dtype, t.dtype)
        return f"{word} {self.typed(s.args[0])} to {type_text(t)}"

    def rearrange(self, s: Inst) -> str:
        kind = s.args[0].type
        if s.op == "splat":
            wide = f"<{s.attr('lanes')} x {scalar(kind.dtype)}>"
            first = "%" + self.fresh()
            self.lines.append(f"  {first} = insertelement {wide} poison, {self.typed(s.args[0])}, i32 0")
            return f"shufflevector {wide} {first}, {wide} poison, <{s.attr('lanes')} x i32> zeroinitializer"
        lanes: tuple[int, ...] = s.attr("lanes")
        if kind.lanes == 1:
            return self.gather(s.args, lanes)
        if len(lanes) == 1:
            return f"extractelement {self.typed(s.args[lanes[0] // kind.lanes])}, i32 {lanes[0] % kind.lanes}"
        other = self.typed(s.args[1]) if len(s.args) > 1 else f"{type_text(kind)} poison"
        mask = ", ".join(f"i32 {i}" for i in lanes)
        return f"shufflevector {self.typed(s.args[0])}, {other}, <{len(lanes)} x i32> <{mask}>"

    def gather(self, args: tuple[Value, ...], lanes: tuple[int, ...]) -> str:
        """Scalars into a vector, one by one."""
        wide, last = f"<{len(lanes)} x {scalar(args[0].type.dtype)}>", "poison"
        steps = [f"{self.typed(args[lane])}, i32 {k}" for k, lane in enumerate(lanes)]
        for step in steps[:-1]:
            name = "%" + self.fresh()
            self.lines.append(f"  {name} = insertelement {wide} {last}, {step}")
            last = name
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
        end = [f"  {following} = add i64 {index}, {step}", f"  br label %{head}, !llvm.loop !1", f"{after}:"]
        self.lines = [*outer, *start, f"  br i1 {test}, label %{inside}, label %{after}", f"{inside}:", *self.lines, *end]
        self.block = after


def _align(value: Value) -> int:
    return min(4, value.type.dtype.bytes)


_BOOL = DType("i1", "u", 1)
_UNROLL = '!1 = distinct !{!1, !2}\n!2 = !{!"llvm.loop.unroll.disable"}'


def llvm_text(function: Function, triple: str = "") -> str:
    """The module's text. Raises KernelError on an op that lowering should have replaced."""
    return Printer(function).text(f'target triple = "{triple}"' if triple else "")
