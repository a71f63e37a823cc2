"""A function lowered to meanings, as Python over numpy: the living definition of a kernel, and the
oracle of its tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from satchel.lang.ir import DTYPES, Function, Inst, Loop, Stmt, Type, Value, parse_type
from satchel.lang.primitives import PRIMITIVES


class Pointer:
    """A place in an array of bytes."""

    def __init__(self, memory: Any, at: int = 0) -> None:
        self.memory, self.at = memory, at

    def offset(self, n_bytes: Any) -> Pointer:
        return Pointer(self.memory, self.at + int(n_bytes[0]))

    def load(self, kind: Type) -> Any:
        import numpy as np

        end = self.at + kind.dtype.bytes * kind.lanes
        assert 0 <= self.at <= end <= self.memory.size, f"a load at {self.at} is out of bounds"
        return np.frombuffer(self.memory[self.at : end].tobytes(), kind.dtype.numpy)

    def store(self, x: Any) -> None:
        import numpy as np

        raw = np.frombuffer(x.tobytes(), np.uint8)
        end = self.at + raw.size
        assert 0 <= self.at <= end <= self.memory.size, f"a store at {self.at} is out of bounds"
        self.memory[self.at : end] = raw

    def prefetch(self) -> None:
        """Means nothing: any place will do."""


class Args(Pointer):
    """The slots of a kernel's arguments: pointers, and numbers as they lie in 8 bytes."""

    def __init__(self, slots: list[Any]) -> None:
        self.slots, self.at = slots, 0

    def offset(self, n_bytes: Any) -> Args:
        moved = Args(self.slots)
        moved.at = self.at + int(n_bytes[0])
        return moved

    def load(self, kind: Type) -> Any:
        import numpy as np

        slot = self.slots[self.at // 8]
        return slot if isinstance(slot, Pointer) else np.array([slot], kind.dtype.numpy)


def python_text(function: Function) -> str:
    """Source of `def name(args, lo, hi)`; values are arrays of one element a lane."""
    names: dict[Value, str] = {p: f"p{i}" for i, p in enumerate(function.params)}

    def name(value: Value) -> str:
        return names.setdefault(value, f"v{len(names)}")

    def right(s: Inst) -> str:
        args = [name(a) for a in s.args]
        if s.op in ("load", "offset", "store", "prefetch"):
            first, rest = (args[1], args[:1]) if s.op == "store" else (args[0], args[1:])
            rest += [f"T['{s.attr('type')}']"] if s.op == "load" else []
            return f"{first}.{s.op}({', '.join(rest)})"
        tables = {"to": "D", "type": "T"}
        attrs = [f"{k}={tables[k]}['{v}']" if k in tables else f"{k}={v!r}" for k, v in s.attrs]
        return f"{s.op}_({', '.join(args + attrs)})"

    def lines(body: tuple[Stmt, ...], indent: str) -> list[str]:
        out: list[str] = []
        for s in body:
            if isinstance(s, Loop):
                out += [
                    f"{indent}{name(p)} = {name(i)}" for p, i in zip(s.params, s.inits, strict=True)
                ]
                out += [
                    f"{indent}for i in range({', '.join(f'int({name(b)}[0])' for b in s.bounds)}):"
                ]
                out += [f"{indent}    {name(s.index)} = index_(i)"]
                out += lines(s.body, indent + "    ")
                if s.params:
                    left = ", ".join(name(p) for p in s.params)
                    out += [f"{indent}    {left} = {', '.join(name(y) for y in s.yields)}"]
                out += [
                    f"{indent}{name(r)} = {name(p)}"
                    for r, p in zip(s.results, s.params, strict=True)
                ]
            else:
                made = f"{name(s.result)} = " if s.result is not None else ""
                out.append(f"{indent}{made}{right(s)}")
        return out

    body = lines(function.body, "    ")
    return "\n".join(
        [f"def {function.name}({', '.join(name(p) for p in function.params)}):", *body, ""]
    )


def python_function(function: Function) -> Callable[[list[Any], int, int], None]:
    """The kernel as a function `f(slots, lo, hi)`: slots are Pointers, ints and floats."""
    import numpy as np

    class Types(dict[str, Type]):
        def __missing__(self, key: str) -> Type:
            return self.setdefault(key, parse_type(key))

    def index(i: int) -> Any:
        return np.array([i], np.int64)

    scope: dict[str, Any] = {f"{k}_": p.meaning for k, p in PRIMITIVES.items() if p.meaning}
    scope |= {"T": Types(), "D": DTYPES, "index_": index}
    scope |= {"nan": float("nan"), "inf": float("inf")}
    exec(compile(python_text(function), f"<{function.name}>", "exec"), scope)
    inner = scope[function.name]

    def call(slots: list[Any], lo: int, hi: int) -> None:
        with np.errstate(all="ignore"):
            inner(Args(slots), np.array([lo], np.int64), np.array([hi], np.int64))

    return call
