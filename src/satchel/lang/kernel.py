"""`@kernel`: from a Python function to an object file for a target, every stage open to view."""

from __future__ import annotations

import hashlib
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from satchel.base.dtypes import DType, i64
from satchel.base.errors import KernelError
from satchel.lang.ir import Function, Type, ptr
from satchel.lang.lower import check, lower
from satchel.lang.print.llvm import llvm_text
from satchel.lang.target import Target
from satchel.lang.trace import Row, RowOf, Tracer, V, emit, tracing, value

_LLVM = threading.Lock()
"""Held while LLVM is made ready; all else that we call there is safe in several threads."""


@dataclass(frozen=True)
class Kernel:
    """A kernel's source. Its first two parameters are lo and hi; each further positional one is a
    slot of 8 bytes.
    """

    body: Callable[..., None]

    @property
    def name(self) -> str:
        return self.body.__name__

    @cached_property
    def slots(self) -> dict[str, RowOf | DType]:
        """The run-time arguments after lo and hi: a row, or a scalar of this type."""
        parameters = inspect.signature(self.body, eval_str=True).parameters.values()
        return {
            p.name: p.annotation.__metadata__[0]
            for p in parameters
            if p.kind is p.POSITIONAL_OR_KEYWORD and p.name not in ("lo", "hi")
        }

    def trace(self, name: str, **constants: Any) -> Function:
        """Run the source on symbols. Raises KernelError, naming the kernel's line."""
        params = (V(Type(ptr)), V(Type(i64)), V(Type(i64)))
        with tracing(Tracer()) as tracer:
            self.body(*params[1:], *self._arguments(params[0]), **constants)
        return Function(name, params, tracer.body())

    def _arguments(self, args: V) -> list[V | Row]:
        out: list[V | Row] = []
        for i, kind in enumerate(self.slots.values()):
            slot = emit("offset", args, value(8 * i, Type(i64))) if i else args
            dtype = ptr if isinstance(kind, RowOf) else kind
            x = emit("load", slot, type=Type(dtype), constant=True)
            out.append(Row(x, kind.dtype, kind.constant) if isinstance(kind, RowOf) else x)
        return out

    def build(self, target: Target, **constants: Any) -> Build:
        """The kernel for one target and these constants; nothing is compiled until it is asked
        for.
        """
        return Build(self, target, tuple(sorted(constants.items())))


def kernel(body: Callable[..., None]) -> Kernel:
    """Make a kernel of a function `(lo, hi, row and scalar parameters..., *, constants...)`."""
    return Kernel(body)


@dataclass(frozen=True)
class Build:
    """One kernel for one target: traced, lowered, printed, compiled, each on demand."""

    kernel: Kernel
    target: Target
    constants: tuple[tuple[str, Any], ...] = field(default=())

    @cached_property
    def name(self) -> str:
        """The symbol: the kernel's name and its constants."""
        words = [
            self.kernel.name,
            *(k if v is True else _word(v) for k, v in self.constants if v not in (None, False)),
        ]
        return "_".join(words)

    @cached_property
    def traced(self) -> Function:
        function = self.kernel.trace(self.name, **dict(self.constants))
        check(function, "traced")
        return function

    @cached_property
    def lowered(self) -> Function:
        function = lower(self.traced, self.target.features)
        check(function, "lowered")
        return function

    @cached_property
    def llvm(self) -> str:
        return llvm_text(self.lowered)

    @cached_property
    def assembly(self) -> str:
        return compile_llvm(self.llvm, self.target, assembly=True).decode()

    def object(self) -> bytes:
        """Relocatable machine code. Raises KernelError."""
        return compile_llvm(self.llvm, self.target)


def _word(v: Any) -> str:
    if isinstance(v, tuple):
        return "_".join(map(_word, v))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    text = getattr(v, "__name__", None) or str(v)
    return "".join(c if c.isalnum() else "_" for c in text)


def source_key(*parts: str) -> str:
    """A fingerprint of texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def compile_llvm(text: str, target: Target, *, assembly: bool = False) -> bytes:
    """LLVM IR text as an object file, or as assembly. Raises KernelError on text that LLVM refuses.

    What a target can't do at all ends the process: generate code for other machines in a child.
    """
    llvm = _llvm()
    machine = target_machine(target)
    try:
        module = llvm.parse_assembly(text)
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
        module.verify()
    except RuntimeError as e:
        raise KernelError(f"LLVM refuses a kernel: {str(e).splitlines()[0]}") from None
    return machine.emit_assembly(module).encode() if assembly else machine.emit_object(module)


def _llvm() -> Any:
    """llvmlite's binding, which has no types; loaded when something is compiled."""
    import llvmlite.binding

    return llvmlite.binding


def target_machine(target: Target) -> Any:
    """llvmlite's TargetMachine for a target; a new one each time: they are not to be shared by
    threads.

    Code for this machine's ISA follows the conventions of this process (ELF, Mach-O or COFF).
    """
    llvm = _llvm()
    with _LLVM:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    triple = llvm.get_process_triple() if target.is_host else target.triple
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=target.cpu,
        features=target.llvm_features,
        opt=3,
        reloc=target.reloc,
        codemodel=target.codemodel,
        abiname=target.abi,
    )
