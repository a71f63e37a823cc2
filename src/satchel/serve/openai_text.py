"""POST /v1/completions: prompts that are continued as they stand."""

from __future__ import annotations

from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response

from satchel.api import LLM, Stream
from satchel.serve.answers import Part
from satchel.serve.asks import ANSWERING, options_of, text_prompt
from satchel.serve.bodies import read_body
from satchel.serve.conversations import CONSTRAINTS, constraint_of
from satchel.serve.logprobs import TextLogprobs
from satchel.serve.openai import respond
from satchel.serve.shapes import (
    TEXT,
    TOKENS,
    TRUTH,
    WHOLE,
    UnsupportedFieldError,
    between,
    either,
    listing,
    only,
    record,
)

IDS = {**TOKENS, "minItems": 1}
COMPLETION = record(
    {
        **ANSWERING,
        **CONSTRAINTS,
        "prompt": either(TEXT, IDS, listing(TEXT, 64, 1), listing(IDS, 64, 1)),
        "echo": TRUTH,
        "best_of": only(1),
        "suffix": only(""),
        "logprobs": between(WHOLE, 0, 20),
    },
    "prompt",
)


class TextForm:
    """How completions look."""

    prefix = "cmpl"
    whole = chunk = "text_completion"

    def __init__(self, echoed: list[str], n: int, with_logprobs: bool) -> None:
        """`echoed` has the prompts' texts once they are known, or nothing; each has `n` answers."""
        self.echoed, self.n, self.with_logprobs = echoed, n, with_logprobs
        self.logprobs: dict[int, TextLogprobs] = {}

    def opening(self, index: int) -> dict[str, Any] | None:
        """The prompt, where it is asked back."""
        return {"text": self.echoed[index // self.n]} if self.echoed else None

    def choice(self, llm: LLM, index: int, answer: Stream) -> dict[str, Any]:
        """An answer that is complete."""
        echo = self.echoed[index // self.n] if self.echoed else ""
        found: dict[str, Any] = {"text": echo + answer.text}
        if self.with_logprobs:
            found["logprobs"] = TextLogprobs(llm).add(answer.logprobs)
        return found

    def delta(self, llm: LLM, part: Part) -> dict[str, Any] | None:
        """A part of one."""
        if not part.text and not part.logprobs:
            return None
        found: dict[str, Any] = {"text": part.text}
        if self.with_logprobs:
            kept = self.logprobs.setdefault(part.index, TextLogprobs(llm))
            found["logprobs"] = kept.add(part.logprobs)
        return found

    def end(self) -> dict[str, Any]:
        """A chunk that only ends an answer."""
        return {"text": ""}


async def complete(request: Request) -> Response:
    """POST /v1/completions."""
    body = await read_body(request, COMPLETION)
    prompts = _prompts(body["prompt"])
    options = options_of(body)
    options.update(constraint_of(body))
    if "logprobs" in body:
        options["logprobs"] = body["logprobs"]
        if body.get("echo"):
            raise UnsupportedFieldError(
                "logprobs", "with echo this is not supported; leave one out"
            )
    echoed: list[str] = []

    def prepare(llm: LLM) -> list[list[int]]:
        if body.get("echo"):
            echoed.extend(p if isinstance(p, str) else llm.detokenize(p) for p in prompts)
        return [text_prompt(llm, p) if isinstance(p, str) else p for p in prompts]

    form = TextForm(echoed, body.get("n", 1), "logprobs" in body)
    return await respond(request, body, form, len(prompts), prepare, options)


def _prompts(given: Any) -> list[str | list[int]]:
    """One prompt or many, of text or of tokens."""
    if isinstance(given, str) or isinstance(given[0], int):
        return [given]
    return cast("list[str | list[int]]", given)
