"""Which cache types are refused, by which figure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.measure.tiny import write_tiny

from satchel.base.errors import OptionError
from satchel.engine import cache_loss
from satchel.engine.cache_loss import (
    KNOWN,
    LIMIT,
    check_cache_types,
    keep_losses,
    loss_of,
    losses_path,
    model_name,
    read_losses,
    read_types,
)
from satchel.engine.cache_loss import (
    cache_loss as loss_of_types,
)
from satchel.files.checkpoint import Checkpoint, open_checkpoint
from satchel.kernels.cache_types import CACHE_TYPES, F16


@pytest.fixture
def unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    """A model that nobody has measured; the cache is an empty folder."""
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path / "cache"))
    return open_checkpoint(write_tiny(tmp_path / "tiny.gguf"))


def test_spellings() -> None:
    assert read_types("q8_0", "q4_0") == ("int8", "int4")
    with pytest.raises(OptionError, match=r"cache_type_v: 'q3' is none of f16, bf16"):
        read_types("f16", "q3")


def test_f16_costs_nothing(unknown: Checkpoint) -> None:
    assert loss_of_types(unknown, (F16, F16)).mean_kl == 0


def test_every_type_is_known_alone() -> None:
    for figures in KNOWN.values():
        for name in CACHE_TYPES:
            assert loss_of(figures, (name, F16)) is not None
            assert loss_of(figures, (F16, name)) is not None


def test_a_pair_costs_what_was_measured_or_both_together() -> None:
    figures = {("a", F16): 0.01, (F16, "b"): 0.02, ("c", "b"): 0.5, ("c", F16): 0.1}
    assert loss_of(figures, ("a", "b")) == pytest.approx(0.03)
    assert loss_of(figures, ("c", "b")) == 0.5
    assert loss_of(figures, ("a", "x")) is None


def test_of_an_unknown_model_the_most_that_is_known_counts(unknown: Checkpoint) -> None:
    worst = max(figures["int4", F16] for figures in KNOWN.values())
    assert worst > LIMIT
    assert loss_of_types(unknown, ("int4", F16)).mean_kl == worst
    check_cache_types(unknown, ("int8", "int4"), forced=False)
    check_cache_types(unknown, ("int4", "int4"), forced=True)
    with pytest.raises(OptionError) as refused:
        check_cache_types(unknown, ("int4", F16), forced=False)
    said = str(refused.value)
    assert f"{worst:.2g} from f16 (the most among the models we know)" in said
    assert "take another type for K (bf16, int8" in said
    assert "--force-cache-type" in said


def test_what_was_measured_here_counts_first(unknown: Checkpoint) -> None:
    keep_losses(unknown, {("int4", F16): 0.01, (F16, "int8"): 0.02})
    check_cache_types(unknown, ("int4", "int8"), forced=False)
    assert loss_of_types(unknown, ("int4", "int8")).source == "measured on this file"
    keep_losses(unknown, {("int4", F16): 0.04})
    assert read_losses(unknown) == {("int4", F16): 0.04, (F16, "int8"): 0.02}
    with pytest.raises(OptionError, match=r"0\.06 from f16 \(measured on this file\)"):
        check_cache_types(unknown, ("int4", "int8"), forced=False)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"version": "0", "losses": [["int4", "f16", 0]]}', "[" * 9999]
)
def test_damaged_figures_are_none(unknown: Checkpoint, content: str) -> None:
    path = losses_path(unknown)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert read_losses(unknown) == {}
    path.write_text(json.dumps({"version": cache_loss.VERSION, "losses": [["int4", "f16", 1e999]]}))
    assert read_losses(unknown) == {}


def test_known_models_are_found_by_their_files(smollm2: Path, gemma3: Path) -> None:
    assert {model_name(open_checkpoint(path)) for path in (smollm2, gemma3)} == KNOWN.keys()
