"""Where activations live: nothing that is still wanted is written over."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.archs import tiny

from satchel.archs import trace
from satchel.compiler.limits import Limits
from satchel.compiler.lowering import Lowered
from satchel.compiler.memory import Life, lives, plan_memory
from satchel.compiler.model import host_target
from satchel.compiler.pipeline import compile_graph
from satchel.runtime.plan import Buffer, Count, Ref, Step


def step(phase: int, *buffers: str) -> Step:
    return Step("k", tuple(Ref(b, 0) for b in buffers), Count(1), phase, "")


def arena(buffers: tuple[Buffer, ...]) -> list[Buffer]:
    return [b for b in buffers if b.kind == "arena"]


def assert_apart(buffers: tuple[Buffer, ...], alive: dict[str, Life]) -> None:
    for a, b in combinations(arena(buffers), 2):
        apart = a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset
        assert apart or not alive[a.name].meets(alive[b.name]), (a, b)


Use = st.tuples(st.integers(1, 2000), st.integers(0, 9), st.integers(0, 4))


@given(st.lists(Use, min_size=1, max_size=20))
def test_no_two_living_buffers_meet(uses: list[tuple[int, int, int]]) -> None:
    buffers = tuple(Buffer(f"b{i}", n, "arena") for i, (n, _, _) in enumerate(uses))
    steps = [
        step(at, f"b{i}") for i, (_, first, more) in enumerate(uses) for at in (first, first + more)
    ]
    planned = plan_memory(buffers, tuple(steps))
    assert_apart(planned, lives(tuple(steps)))
    assert all(b.offset % 64 == 0 for b in planned)
    most = sum(-(-b.bytes // 64) * 64 for b in buffers)
    assert max(b.offset + b.bytes for b in planned) <= most
    assert [(b.name, b.bytes) for b in planned] == [(b.name, b.bytes) for b in buffers]


def test_lives_include_both_ends() -> None:
    """What is read last in the phase in which another is written must not share its place."""
    steps = (step(0, "a"), step(1, "a", "b"), step(2, "b", "c"))
    assert lives(steps) == {"a": Life(0, 1), "b": Life(1, 2), "c": Life(2, 2)}
    planned = plan_memory(tuple(Buffer(n, 64, "arena") for n in "abc"), steps)
    a, b, c = (buffer.offset for buffer in planned)
    assert a != b
    assert b != c
    assert a == c


def test_other_buffers_stay() -> None:
    buffers = (Buffer("w", 10, "weight"), Buffer("a", 5, "arena"))
    assert plan_memory(buffers, (step(0, "w", "a"),))[0] == buffers[0]


def compiled(case: str) -> Lowered:
    return compile_graph(trace(tiny.checkpoint(case)), host_target(), Limits(64, 256, 8, 4))


@pytest.mark.parametrize("case", tiny.MODELS)
def test_plans_of_models(case: str) -> None:
    """In memory, buffers of one time are apart; in time, all readers come after all writers."""
    lowered = compiled(case)
    plan = lowered.plan
    assert_apart(plan.buffers, lives(plan.steps))
    assert [s.phase for s in plan.steps] == sorted(s.phase for s in plan.steps)
    kinds = {b.name: b.kind for b in plan.buffers}
    written: dict[str, int] = {}
    for one in plan.steps:
        slots = list(lowered.builds[one.kernel].kernel.slots.items())
        for (_, kind), arg in zip(slots, one.args, strict=True):
            if isinstance(arg, Ref) and kinds[arg.buffer] in ("arena", "output"):
                if getattr(kind, "constant", False):
                    assert written[arg.buffer] < one.phase, (one, arg)
                else:
                    assert written.get(arg.buffer, one.phase) == one.phase, (one, arg)
                    written[arg.buffer] = one.phase
    assert "logits" in written


def test_arena_is_small() -> None:
    """Deeper models need no more: layers share their memory."""

    def n_bytes(n_layers: int) -> int:
        fake = tiny.checkpoint("llama")
        fake.metadata["llama.block_count"] = n_layers
        for i in range(2, n_layers):
            fake.arrays |= {
                n.replace("blk.0.", f"blk.{i}."): a for n, a in fake.arrays.items() if "blk.0." in n
            }
        lowered = compile_graph(trace(fake), host_target(), Limits(64, 256, 8, 4))
        return max(b.offset + b.bytes for b in arena(lowered.plan.buffers))

    assert n_bytes(8) == n_bytes(2)
