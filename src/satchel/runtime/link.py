"""From objects to addresses: machine code in memory, ready to be called."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from satchel.base import log
from satchel.base.errors import KernelError
from satchel.runtime.devices import elf

_names = itertools.count()


class Linked(Mapping[str, int]):
    """Addresses of functions by name. The code lives as long as this does."""

    def __init__(self, addresses: Mapping[str, int], code: object) -> None:
        self._addresses = dict(addresses)
        self._code = code  # what owns the memory

    def __getitem__(self, name: str) -> int:
        return self._addresses[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._addresses)

    def __len__(self) -> int:
        return len(self._addresses)


def link(data: bytes, names: Iterable[str]) -> Linked:
    """Load the object `data` and find its functions `names`.

    Raises KernelError when it lacks one of them, or needs what no one has.
    """
    return link_all({"": data}, dict.fromkeys(names, ""))


def link_all(objects: Mapping[str, bytes], kernels: Mapping[str, str]) -> Linked:
    """The addresses of all kernels of a plan, each in the object of its key.

    Raises KernelError as `link` does. LLVM is used, and imported, only for what `elf` refuses.
    """
    by_key: dict[str, list[str]] = {key: [] for key in objects}
    for name, key in kernels.items():
        if key not in by_key:
            raise KernelError(f"there is no object {key} for the kernel {name}")
        by_key[key].append(name)
    try:
        found, code = elf.load(list(objects.values()))
    except elf.CanNotLoadError as error:
        log.debug(f"kernels are linked by LLVM: {error}")
        parts = [_link_by_llvm(objects[key], tuple(names)) for key, names in by_key.items()]
        return Linked({name: part[name] for part in parts for name in part}, parts)
    linked: dict[str, int] = {}
    for functions, names in zip(found, by_key.values(), strict=True):
        for name in names:
            if name not in functions:
                raise KernelError(f"an object lacks the function {name}; clear the kernel cache")
            linked[name] = functions[name]
    return Linked(linked, code)


def _link_by_llvm(data: bytes, names: tuple[str, ...]) -> Linked:
    llvm: Any = importlib.import_module("llvmlite.binding")
    builder = llvm.JITLibraryBuilder().add_object_img(data).add_current_process()
    for name in names:
        builder.export_symbol(name)
    try:
        tracker = builder.link(_jit(), f"object{next(_names)}")
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise KernelError(f"an object can't be linked: {reason}") from error
    return Linked({name: tracker[name] for name in names}, tracker)


@cache
def _jit() -> Any:
    llvm: Any = importlib.import_module("llvmlite.binding")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    return llvm.create_lljit_compiler(target.create_target_machine())
