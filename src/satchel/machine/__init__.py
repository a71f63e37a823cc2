"""Level 1: what this computer is: instructions, cores, caches, memory; fake machines for tests."""

from satchel.machine.detect import this_machine
from satchel.machine.machine import Cache, Core, Machine

__all__ = ["Cache", "Core", "Machine", "this_machine"]
