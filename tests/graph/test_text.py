"""A graph's text form prints, reads back, and refuses what it did not write."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.graph.graphs import POSITIONS, TOKENS, WANTED, graphs

from satchel.base.errors import FileFormatError
from satchel.graph import OPS, Graph, Op, Tensor, make, weight_node
from satchel.graph import tensor as t

SMALL = """\
input tokens i32[tokens]
input positions i32[tokens]
input wanted i32[wanted]
%0 = embed(token_embd.weight Q8_0[20, 8], tokens) f32[tokens, 8]

%0.0 = rms_norm(%0, blk.0.attn_norm.weight F32[8], eps=1e-05) f32[tokens, 8]
%0.1 = split_heads(%0.0, n=2) f32[tokens, 2, 4]
%0.2 = rope(%0.1, positions, theta=10000.0, dims=4, pairs='halves') f32[tokens, 2, 4]
%0.3 = attention(%0.2, %0.1, %0.1, positions, cache=0, scale=0.5, window=3, softcap=None) \
f32[tokens, 2, 4]
%0.4 = join_heads(%0.3) f32[tokens, 8]
%0.5 = add(%0, %0.4) f32[tokens, 8]

%1 = pick(%0.5, wanted) f32[wanted, 8]
%2 = linear(%1, token_embd.weight Q8_0[20, 8]) f32[wanted, 20]

output %2
"""


def small() -> Graph:
    table = Tensor(weight_node("token_embd.weight", (20, 8), "Q8_0"))
    x = t.embed(table, Tensor(TOKENS))
    with t.in_layer(0):
        norm = Tensor(weight_node("blk.0.attn_norm.weight", (8,), "F32"))
        heads = t.rms_norm(x, norm, 1e-5).split_heads(2)
        positions = Tensor(POSITIONS)
        q = t.rope(heads, positions, theta=1e4, dims=4, pairs="halves")
        x = x + t.attention(q, heads, heads, positions, cache=0, scale=0.5, window=3).join_heads()
    logits = t.linear(t.pick(x, Tensor(WANTED)), table)
    return Graph((TOKENS, POSITIONS, WANTED), (logits.node,))


def test_the_text_form() -> None:
    assert str(small()) == SMALL


def test_the_text_of_one_layer() -> None:
    lines = small().text(layer=0).splitlines()
    assert len(lines) == 6
    assert all(line.startswith("%0.") for line in lines)
    assert small().text(layer=1) == ""


@given(graphs())
def test_a_graph_reads_back(graph: Graph) -> None:
    again = Graph.parse(str(graph))
    assert again == graph
    assert str(again) == str(graph)
    assert [node.op for node in again.nodes] == [node.op for node in graph.nodes]
    assert [dict(node.attrs) for node in again.nodes] == [dict(node.attrs) for node in graph.nodes]


def test_graphs_that_differ_are_not_equal() -> None:
    assert Graph.parse(SMALL) == small()
    assert Graph.parse(SMALL.replace("window=3", "window=4")) != small()
    assert Graph.parse(SMALL.replace("Q8_0", "Q4_0")) != small()
    assert hash(Graph.parse(SMALL)) == hash(small())


_ATTRS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)  # fmt: skip


def _keep(x: Any, /, **_: Any) -> Any:
    return x


@given(st.dictionaries(st.from_regex(r"[a-z]\w{0,5}", fullmatch=True), _ATTRS, max_size=4))
def test_attrs_of_every_kind_read_back(attrs: dict[str, object]) -> None:
    attrs = {name: value for name, value in attrs.items() if name not in ("layer", "op")}
    OPS["anyhow"] = Op("anyhow", _keep, _keep, "f32", True)
    try:
        node = make("anyhow", TOKENS, **attrs)  # pyright: ignore[reportArgumentType]
        graph = Graph((TOKENS,), (node,))
        assert dict(Graph.parse(str(graph)).outputs[0].attrs) == attrs
    finally:
        del OPS["anyhow"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("%0.5 = add(%0, %0.4)", "%0.5 = add(%0, %9.4)", "line 11"),
        ("%0.5 = add(%0, %0.4)", "%0.5 = append(%0, %0.4)", "append"),
        ("%0.5 = add(%0, %0.4)", "%0.5 = add(%0, %0.1)", "equal shapes"),
        ("add(%0, %0.4) f32", "add(%0, %0.4) f16", "gives f32"),
        ("eps=1e-05", "eps=", "line 6"),
        ("eps=1e-05", "eps=open", "line 6"),
        (", eps=1e-05", "", "eps"),
        ("eps=1e-05", "eps=1e-05, more=1", "more"),
        ("window=3, ", "", "window"),
        ("linear(%1, token_embd.weight Q8_0", "linear(%1, token_embd.weight Q4_0", "two types"),
        ("output %2", "output %3", "line 16"),
        ("input wanted i32[wanted]", "take wanted", "line 3"),
    ],
)
def test_a_wrong_line_is_named(old: str, new: str, says: str) -> None:
    assert old in SMALL
    with pytest.raises(FileFormatError, match=says) as error:
        Graph.parse(SMALL.replace(old, new))
    assert "line " in str(error.value)


@given(st.data())
def test_damaged_text_gives_our_errors_only(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(SMALL) - 1))
    text = SMALL[:at] + data.draw(st.text(max_size=2)) + SMALL[at + data.draw(st.integers(0, 3)) :]
    result = None
    try:
        result = Graph.parse(text)
    except FileFormatError as error:
        assert "line " in str(error)  # noqa: PT017 (most damage is an error, some is none)
    assert result is None or Graph.parse(str(result)) == result
