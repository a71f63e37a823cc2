"""Many clients at once, on a real model: the same answers as alone, in less time."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.serve.served import Served

PROMPTS = [f"Write a short story about a {thing}." for thing in
           ("cat", "ship", "violin", "river", "clock", "garden", "letter", "mountain")]  # fmt: skip


def story(served: Served, prompt: str, **fields: Any) -> str:
    said: Any = [{"role": "user", "content": prompt}]
    (name,) = served.server.models.named
    stream = served.openai().chat.completions.create(
        model=name, messages=said, temperature=0, max_tokens=48, stream=True, **fields
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def test_eight_streams_say_what_each_says_alone_and_sooner(real: Served) -> None:
    story(real, "Hi")  # loads the model
    begun = time.perf_counter()
    alone = [story(real, prompt) for prompt in PROMPTS]
    one_by_one = time.perf_counter() - begun
    for loaded in real.server.models.loaded.values():
        loaded.sessions.close()  # so that nothing is known already
    steps = real.llm.usage().steps
    begun = time.perf_counter()
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda prompt: story(real, prompt), PROMPTS))
    at_once = time.perf_counter() - begun
    assert together == alone
    assert len(set(alone)) == 8
    # clocks are noisy where others work too; steps are not: they were shared
    assert real.llm.usage().steps - steps < 8 * 48 / 3
    assert at_once < 2 * one_by_one


def test_a_mixed_crowd_is_answered_as_if_alone(real: Served) -> None:
    """Long and short prompts, streams that break off, and refusals, beside one another."""
    alone = {prompt: story(real, prompt) for prompt in PROMPTS[:3]}

    def leave(_: int) -> str:
        said: Any = [{"role": "user", "content": "Count to a hundred. " * 20}]
        (name,) = real.server.models.named
        stream = real.openai().chat.completions.create(
            model=name, messages=said, stream=True, max_tokens=200
        )
        next(stream)
        stream.close()
        return ""

    def refused(_: int) -> str:
        return str(real.post("/v1/completions", {"prompt": "x " * 3000}).status_code)

    with ThreadPoolExecutor(12) as pool:
        leaving = [pool.submit(leave, i) for i in range(4)]
        wrong = [pool.submit(refused, i) for i in range(4)]
        right = {prompt: pool.submit(story, real, prompt) for prompt in alone}
        assert {prompt: found.result() for prompt, found in right.items()} == alone
        assert {found.result() for found in wrong} == {"400"}
        assert {found.result() for found in leaving} == {""}
    assert real.busy_pages() == 0
