"""Patterns match what they say, and rewriting keeps a graph's meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.graph.graphs import DIM, POSITIONS, TOKENS, VOCAB, WANTED, graphs

from satchel.graph import (
    OPS,
    Graph,
    Node,
    Pattern,
    Rule,
    anything,
    evaluate,
    make,
    op,
    rewrite,
    weight_node,
)

TABLE = weight_node("table", (VOCAB, DIM), "F32")
X = make("embed", TABLE, TOKENS)


def graph(*outputs: Node) -> Graph:
    return Graph((TOKENS, POSITIONS, WANTED), outputs)


def two_scales(once: bool = True) -> Rule:
    inner = Pattern("scale", anything("x"), name="inner", once=once)

    def become(outer: Node, inner: Node, x: Node) -> Node:
        by = float(str(inner["by"])) * float(str(outer["by"]))
        return make("scale", x, layer=outer.layer, by=by)

    return Rule(Pattern("scale", inner, name="outer"), become)


def test_a_chain_is_folded_to_its_end() -> None:
    x = X
    for by in (2.0, 3.0, 5.0, 7.0):
        x = make("scale", x, layer=1, by=by)
    (out,) = rewrite(graph(x), [two_scales()]).outputs
    assert (out.op, out["by"], out.layer) == ("scale", 210.0, 1)
    assert out.inputs == (X,)


def test_once_spares_what_others_read() -> None:
    inner = make("scale", X, by=2.0)
    outer = make("scale", inner, by=3.0)
    both = graph(make("add", inner, outer))
    assert rewrite(both, [two_scales()]) == both
    assert len(rewrite(both, [two_scales(once=False)]).find("scale")) == 2
    shown = graph(outer, inner)  # an output is a reader too
    assert rewrite(shown, [two_scales()]) == shown


def test_an_untouched_graph_keeps_its_nodes() -> None:
    before = graph(make("silu", X))
    assert rewrite(before, [two_scales()]).outputs[0] is before.outputs[0]


def test_a_name_that_occurs_twice_means_one_node() -> None:
    square = Rule(
        Pattern("mul", anything("x"), anything("x"), name="root"), lambda root, x: make("silu", x)
    )
    y = make("gelu", X)
    assert rewrite(graph(make("mul", y, y)), [square]).outputs[0].op == "silu"
    assert rewrite(graph(make("mul", X, y)), [square]).outputs[0].op == "mul"


def test_patterns_ask_for_ops_attrs_and_operands() -> None:
    node = make("scale", make("silu", X), by=2.0)

    def matches(pattern: Pattern) -> bool:
        return pattern.match(node, lambda _: 1, {}) is not None

    assert matches(Pattern("scale"))
    assert matches(Pattern("silu|scale"))
    assert matches(Pattern("", Pattern("silu|gelu")))
    assert matches(Pattern("scale", by=2.0))
    assert not matches(Pattern("scale", by=3.0))
    assert not matches(Pattern("scale", to=2.0))
    assert not matches(Pattern("silu"))
    assert not matches(Pattern("scale", Pattern("gelu")))
    assert not matches(Pattern("scale", anything(), anything()))


def test_a_rule_may_decline() -> None:
    before = graph(make("silu", X))
    assert rewrite(before, [Rule(Pattern("silu", name="s"), lambda s: None)]) == before


def test_the_first_rule_wins() -> None:
    rules = [
        Rule(Pattern("silu", anything("x")), lambda x: make("gelu", x)),
        Rule(Pattern("silu", anything("x")), lambda x: make("scale", x, by=1.0)),
    ]
    assert rewrite(graph(make("silu", X)), rules).outputs[0].op == "gelu"


@pytest.fixture
def silu_times() -> Any:
    """An op of a pass: entered for one test."""

    @op(lambda x, y: x)
    def silu_times(x: Any, y: Any) -> Any:
        return OPS["silu"].meaning(x) * y

    yield silu_times
    del OPS["silu_times"]


def fuse_gates() -> list[Rule]:
    gate = Pattern("silu", anything("x"), once=True)
    return [
        Rule(
            Pattern("mul", *sides, name="root"),
            lambda root, x, y: make("silu_times", x, y, layer=root.layer),
        )
        for sides in ((gate, anything("y")), (anything("y"), gate))
    ]


def test_a_pass_adds_an_op_of_its_own(silu_times: Any) -> None:
    after = rewrite(graph(make("mul", make("silu", X), make("gelu", X))), fuse_gates())
    assert [node.op for node in after.nodes if not node.is_leaf] == ["embed", "gelu", "silu_times"]
    assert Graph.parse(str(after)) == after


def weights(before: Graph) -> Any:
    rng = np.random.default_rng(0)
    made = {
        name: rng.standard_normal(node.shape).astype(np.float32)  # pyright: ignore
        for name, node in before.weights.items()
    }
    return made.__getitem__


@given(graphs(), st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6))
def test_rewriting_keeps_the_meaning(before: Graph, tokens: list[int]) -> None:
    both = Rule(Pattern("add", anything("x"), anything("x"), name="root"), _doubled)
    after = rewrite(before, [two_scales(), both])
    source = weights(before)
    with np.errstate(all="ignore"):
        old, new = evaluate(before, source, tokens), evaluate(after, source, tokens)
    np.testing.assert_allclose(new, old, rtol=1e-6, atol=1e-9 * (1 + np.abs(old).max()))


def _doubled(root: Node, x: Node) -> Node:
    return make("scale", x, layer=root.layer, by=2.0)
