"""However a text is cut into pieces, what comes out is what stands before its first stop string."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satchel.base.errors import OptionError
from satchel.engine.stops import Stops

FEW = st.text(alphabet="abé🙂", max_size=12)  # few letters: stop strings overlap and begin often
STOPS = st.lists(st.text(alphabet="abé🙂", min_size=1, max_size=4), max_size=3)


def before_first(text: str, strings: list[str]) -> str:
    return text[: min((text.find(s) for s in strings if s in text), default=len(text))]


@given(st.lists(FEW, max_size=8), STOPS)
def test_any_cut_gives_the_text_before_the_first(pieces: list[str], strings: list[str]) -> None:
    stops, text = Stops(strings), "".join(pieces)
    out = [stops.push(piece) for piece in pieces]
    out.append(stops.flush())
    assert "".join(out) == before_first(text, strings)
    assert stops.found == any(s in text for s in strings)


@given(FEW, STOPS)
def test_holds_back_only_what_may_begin_a_stop(text: str, strings: list[str]) -> None:
    stops = Stops(strings)
    out = "".join(stops.push(character) for character in text)
    if not stops.found:
        tails = (text[i:] for i in range(len(text)))
        held = (tail for tail in tails if any(s.startswith(tail) and s != tail for s in strings))
        assert out == text.removesuffix(next(held, ""))


def test_a_stop_inside_another_waits_for_it() -> None:
    stops = Stops(["abcd", "bc"])
    assert stops.push("xabc") == "x"
    assert not stops.found
    assert stops.push("e") == "a"
    assert stops.found
    assert stops.flush() == ""


def test_nothing_after_a_stop() -> None:
    stops = Stops(["#"])
    assert stops.push("one # two") == "one "
    assert (stops.push("three"), stops.flush()) == ("", "")


def test_without_stops_all_text_goes_through_at_once() -> None:
    assert Stops().push("a\nb") == "a\nb"


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(OptionError, match="stop: a stop string is empty"):
        Stops(["a", ""])
