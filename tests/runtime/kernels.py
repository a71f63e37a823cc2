"""Kernels for tests, written as LLVM text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from satchel.runtime.link import Linked, link
from satchel.runtime.plan import Buffer, Count, Plan, Ref, Step

# args: an array of i64, one element a tile. Each tile adds one to its element, atomically, so that
# a tile computed twice or never shows.
COUNT = """
define void @count(ptr %args, i64 %lo, i64 %hi) {
entry:
  %x = load ptr, ptr %args
  br label %loop
loop:
  %i = phi i64 [%lo, %entry], [%next, %body]
  %more = icmp slt i64 %i, %hi
  br i1 %more, label %body, label %end
body:
  %p = getelementptr i64, ptr %x, i64 %i
  %old = atomicrmw add ptr %p, i64 1 monotonic
  %next = add i64 %i, 1
  br label %loop
end:
  ret void
}
"""

# args: y, x, n. Tile i: y[i] = x[0] + ... + x[n - 1], plain loads and stores: it sees what earlier
# phases wrote, or the sum is wrong.
SUM = """
define void @sum(ptr %args, i64 %lo, i64 %hi) {
entry:
  %y = load ptr, ptr %args
  %x.p = getelementptr i64, ptr %args, i64 1
  %x = load ptr, ptr %x.p
  %n.p = getelementptr i64, ptr %args, i64 2
  %n = load i64, ptr %n.p
  br label %tile
tile:
  %i = phi i64 [%lo, %entry], [%i.next, %store]
  %more = icmp slt i64 %i, %hi
  br i1 %more, label %loop, label %end
loop:
  %k = phi i64 [0, %tile], [%k.next, %body]
  %s = phi i64 [0, %tile], [%s.next, %body]
  %more.k = icmp slt i64 %k, %n
  br i1 %more.k, label %body, label %store
body:
  %p = getelementptr i64, ptr %x, i64 %k
  %v = load i64, ptr %p
  %s.next = add i64 %s, %v
  %k.next = add i64 %k, 1
  br label %loop
store:
  %q = getelementptr i64, ptr %y, i64 %i
  store i64 %s, ptr %q
  %i.next = add i64 %i, 1
  br label %tile
end:
  ret void
}
"""

# args: n. Each tile turns in a loop n times.
SPIN = """
define void @spin(ptr %args, i64 %lo, i64 %hi) {
entry:
  %n = load i64, ptr %args
  %tiles = sub i64 %hi, %lo
  %all = mul i64 %n, %tiles
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %slot = getelementptr i64, ptr %args, i64 0
  %v = load volatile i64, ptr %slot
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %all
  br i1 %more, label %loop, label %end
end:
  ret void
}
"""

EMPTY = "define void @empty(ptr %args, i64 %lo, i64 %hi) { ret void }\n"

# args: out, f32, f64, scalar, integer. Stores what it was given, and its tiles.
ECHO = """
define void @echo(ptr %args, i64 %lo, i64 %hi) {
  %out = load ptr, ptr %args
  %from = getelementptr i64, ptr %args, i64 1
  %words = load <4 x i64>, ptr %from, align 8
  store <4 x i64> %words, ptr %out, align 8
  ret void
}
"""


def compile_text(text: str) -> bytes:
    """An object for this machine."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(opt=2, reloc="pic", codemodel="small")
    module = llvm.parse_assembly(text)
    module.verify()
    return machine.emit_object(module)


@lru_cache
def linked() -> Linked:
    """The addresses of all kernels above."""
    names = ("count", "sum", "spin", "empty", "echo")
    return link(compile_text(COUNT + SUM + SPIN + EMPTY + ECHO), names)


KEYS = dict.fromkeys(("count", "sum", "spin", "empty", "echo"), "k")


def plan_of(
    steps: Sequence[Step], buffers: Sequence[Buffer] = (), scalars: Sequence[str] = ()
) -> Plan:
    """A plan over these kernels."""
    return Plan(tuple(steps), tuple(buffers), tuple(scalars), KEYS)


def counting_plan(tiles: Sequence[Sequence[int]]) -> Plan:
    """Phases of steps that count each of their tiles in a buffer `count` of their own part."""
    steps: list[Step] = []
    offset = 0
    for phase, counts in enumerate(tiles):
        for n in counts:
            steps.append(Step("count", (Ref("count", offset),), Count(n), phase))
            offset += 8 * n
    return plan_of(steps, [Buffer("count", offset, "arena")])
