"""With this feature, these instructions: one file an ISA. The first rule that fits is taken;
importing the room adds them all.
"""

from satchel.lang.rules import arm, riscv, wasm, x86

__all__ = ["arm", "riscv", "wasm", "x86"]
