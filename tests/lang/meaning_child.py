"""python meaning_child.py TARGET FOLDER: FOLDER/kernels.o with all variants of a target, in a
process of its own.

LLVM ends the process where it can't select an instruction. With a third argument, run the kernels
here on FOLDER/image, as meaning_runner.c does.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

from meaning_cases import variants

from satchel.lang.kernel import compile_llvm, target_machine
from satchel.lang.print.llvm import llvm_text
from satchel.lang.target import Target, target_named

SLOTS = 4


def compile_all(target: Target, folder: Path) -> bytes:
    """One object: functions k0, k1, ... and a table of them."""
    functions = [v.lower(target, f"k{i}") for i, v in enumerate(variants(target))]
    names = ", ".join(f"ptr @{f.name}" for f in functions)
    text = llvm_text(*functions) + f"@kernels = constant [{len(functions)} x ptr] [{names}]\n"
    made = compile_llvm(text, target)
    (folder / "kernels.o").write_bytes(made)
    return made


def run_here(target: Target, made: bytes, image: Path) -> None:
    import llvmlite.binding as llvm

    machine = target_machine(target)
    empty = llvm.parse_assembly("")
    empty.triple = machine.triple
    engine = llvm.create_mcjit_compiler(empty, machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(made))
    engine.finalize_object()
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    with image.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        head = (ctypes.c_uint64 * 2).from_address(base)
        for k in range(head[0]):
            head[1] = k
            tiles, *offsets = (ctypes.c_uint64 * (1 + SLOTS)).from_address(
                base + 16 + 8 * (1 + SLOTS) * k
            )
            slots = (ctypes.c_void_p * SLOTS)(*(base + at for at in offsets))
            kind(engine.get_function_address(f"k{k}"))(slots, 0, tiles)
        head[1] = head[0]
        memory.flush()
        sys.stdout.flush()
        import os

        os._exit(0)  # the map can't be closed while ctypes looks at it


if __name__ == "__main__":
    chosen, place = target_named(sys.argv[1]), Path(sys.argv[2])
    code = compile_all(chosen, place)
    if len(sys.argv) > 3:
        run_here(chosen, code, place / "image")
