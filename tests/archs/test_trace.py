"""A checkpoint that does not fit its architecture is refused in one line that says why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.archs import tiny

from satchel.archs import config_of, trace
from satchel.base.errors import FileFormatError, SatchelError, UnsupportedError
from satchel.graph import Graph


def refusal(fake: tiny.Fake, error: type[SatchelError] = FileFormatError) -> str:
    with pytest.raises(error) as caught:
        trace(fake)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_an_unknown_architecture_is_told_which_are_known() -> None:
    message = refusal(tiny.Fake("falcon"), UnsupportedError)
    for name in ("falcon", "gemma3", "llama", "mistral", "qwen2", "qwen3"):
        assert name in message


@pytest.mark.parametrize("case", tiny.MODELS)
def test_every_tensor_is_needed(case: str) -> None:
    whole = tiny.checkpoint(case)
    optional = {"output.weight", "rope_freqs.weight"}
    if tiny.arch_of(case) != "qwen2":
        optional |= {name for name in whole.names if name.endswith("bias")}
    for name in whole.names:
        fake = tiny.checkpoint(case)
        del fake.arrays[name]
        if name in optional:
            assert name not in trace(fake).weights
        else:
            assert name in refusal(fake)


@pytest.mark.parametrize("case", tiny.MODELS)
def test_every_shape_is_checked(case: str) -> None:
    for name in tiny.checkpoint(case).names:
        fake = tiny.checkpoint(case)
        array = fake.arrays[name]
        fake.arrays[name] = np.concatenate([array, array[..., -1:]], axis=-1)
        assert name in refusal(fake), name
        if array.ndim == 2 and name != "token_embd.weight":
            fake.arrays[name] = np.concatenate([array, array[-1:]])
            assert name in refusal(fake), name


def test_a_longer_embedding_contradicts_the_vocabulary() -> None:
    fake = tiny.checkpoint("gemma3")
    assert config_of(fake).vocab_size == 48
    fake.metadata["gemma3.vocab_size"] = 47
    assert "token_embd.weight" in refusal(fake)
    fake = tiny.checkpoint("gemma3")
    fake.metadata["tokenizer.ggml.tokens"] = ["x"] * 49
    assert "49 tokens" in refusal(fake)


def test_a_tensor_of_no_use_is_named() -> None:
    fake = tiny.checkpoint("qwen3")
    fake.arrays["blk.1.attn_sinks.weight"] = np.zeros(4, np.float32)
    assert "blk.1.attn_sinks.weight:" in refusal(fake)
    fake.arrays["blk.0.attn_sinks.weight"] = np.zeros(4, np.float32)
    assert "blk.1.attn_sinks.weight (nor for 1 more)" in refusal(fake)


def test_layers_beyond_the_count_are_of_no_use() -> None:
    fake = tiny.checkpoint("llama")
    fake.metadata["llama.block_count"] = 1
    assert "blk.1." in refusal(fake)


@pytest.mark.parametrize(
    "key",
    [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ],
)
def test_a_missing_number_is_named(key: str) -> None:
    fake = tiny.checkpoint("llama")
    del fake.metadata[f"llama.{key}"]
    assert f"llama.{key}" in refusal(fake)


def test_what_no_architecture_honours_is_refused_by_name() -> None:
    for key, value in (("expert_count", 8), ("logit_scale", 0.1), ("rope.scaling.type", "su")):
        fake = tiny.checkpoint("llama")
        fake.metadata[f"llama.{key}"] = value
        assert (key if key != "rope.scaling.type" else "su") in refusal(fake, UnsupportedError)


_VALUES = st.one_of(
    st.integers(-2, 100),
    st.sampled_from([2**31, 2**63, -(2**63), float("nan"), float("inf"), 1e-40, 1e300]),
    st.floats(-10, 10),
    st.text(max_size=3),
    st.booleans(),
    st.lists(st.integers(0, 9), max_size=3),
)


@pytest.mark.slow
@given(
    st.sampled_from(sorted(tiny.MODELS)),
    st.dictionaries(st.integers(0, 99), _VALUES, min_size=1, max_size=3),
)
def test_absurd_numbers_end_in_our_errors(case: str, changes: dict[int, Any]) -> None:
    fake = tiny.checkpoint(case)
    keys = [
        *fake.metadata,
        *(
            f"{fake.arch}.{key}"
            for key in ("vocab_size", "rope.dimension_count", "attention.scale")
        ),
    ]
    for index, value in changes.items():
        fake.metadata[keys[index % len(keys)]] = value
    message = ""
    try:
        graph = trace(fake)
        assert Graph.parse(str(graph)) == graph
    except SatchelError as error:
        message = str(error)
    assert "\n" not in message


def test_layers_carry_their_number_and_attention_its_reach() -> None:
    graph = trace(tiny.checkpoint("gemma3"))
    found = graph.find("attention")
    assert [node["cache"] for node in found] == [node.layer for node in found] == list(range(7))
    assert [node["window"] for node in found] == [6, 6, 6, 6, 6, None, 6]
    thetas = [node["theta"] for node in graph.find("rope")]
    assert thetas == [100.0] * 10 + [1000.0] * 2 + [100.0] * 2
    assert {node.layer for node in graph.nodes if node.op in ("embed", "pick")} == {None}


def test_the_largest_gemma_scales_scores_by_its_width() -> None:
    fake = tiny.checkpoint("gemma3")
    for layer in range(7, 62):
        for name, array in list(fake.arrays.items()):
            if name.startswith("blk.0."):
                fake.arrays[name.replace("blk.0.", f"blk.{layer}.")] = array
    fake.metadata["gemma3.block_count"] = 62
    fake.metadata["gemma3.attention.head_count"] = 4
    assert {node["scale"] for node in trace(fake).find("attention")} == {(32 // 4) ** -0.5}


def test_a_tied_head_reads_the_embedding() -> None:
    tied, untied = trace(tiny.checkpoint("llama-biased")), trace(tiny.checkpoint("llama"))
    assert tied.outputs[0].inputs[1].name == "token_embd.weight"
    assert untied.outputs[0].inputs[1].name == "output.weight"


def test_real_models_trace(smollm2: Any, gemma3: Any) -> None:
    from satchel.files.checkpoint import open_checkpoint

    for path, n_layers in ((smollm2, 30), (gemma3, 18)):
        graph = trace(open_checkpoint(path))
        assert len(graph.find("attention")) == n_layers
        assert Graph.parse(str(graph)) == graph
