"""Damaged requests: each is answered, none with a fault of ours, and nothing is left behind.

The variable DAMAGED_REQUESTS says how many; the default is what a test run has time for.
"""

from __future__ import annotations

import copy
import json
import os
import random
import resource
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest
from tests.serve.served import SAYS, serving, wait_for
from tests.test_api import make, says
from tests.text.tool_templates import HERMES

N = int(os.environ.get("DAMAGED_REQUESTS", "2000"))

SOUND: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {
        "model": "fake", "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        ],
        "max_tokens": 3, "temperature": 0.7, "top_p": 0.9, "stop": ["x"], "seed": 5, "n": 1,
        "logit_bias": {"65": -1.5}, "stream": True, "stream_options": {"include_usage": True},
    }),
    ("/v1/chat/completions", {
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "abcdefghi",
             "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
            {"role": "tool", "tool_call_id": "abcdefghi", "content": "7"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "strict": False, "parameters": {
            "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}],
        "tool_choice": "auto", "parallel_tool_calls": True, "max_tokens": 3, "logprobs": True,
        "top_logprobs": 2, "chat_template_kwargs": {"x": 1},
    }),
    ("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 40,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {
            "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
    }),
    ("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "response_format": {
            "type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
    }),
    ("/v1/responses", {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "function_call", "call_id": "abcdefghi", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "abcdefghi", "output": "7"},
        ],
        "instructions": "Be brief.", "max_output_tokens": 2, "store": True, "stream": True,
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "text": {"format": {"type": "text"}}, "metadata": {"a": "b"},
    }),
    ("/v1/completions", {"prompt": ["Say:", "So"], "max_tokens": 2, "echo": True, "top_k": 4}),
    ("/v1/completions", {"prompt": [83, 97, 121, 58], "max_tokens": 2, "min_p": 0.1}),
    ("/api/chat", {"model": "fake", "messages": [{"role": "user", "content": "Hi"}],
                   "stream": False, "options": {"num_predict": 2, "temperature": 0}}),
    ("/api/chat", {"model": "fake", "stream": False, "format": {"enum": ["x", "yes"]},
        "think": False, "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "", "thinking": "Hm",
             "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, None]}}}]},
            {"role": "tool", "content": "7", "tool_name": "f"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "description": "F"}}],
        "options": {"num_predict": 2}}),
    ("/api/generate", {"model": "fake", "prompt": "Hi", "system": "s", "keep_alive": "5m",
                       "options": {"num_predict": 2, "stop": ["a"]}}),
    ("/api/show", {"model": "fake"}),
    ("/tokenize", {"content": "Grüß", "add_special": True, "with_pieces": True}),
    ("/detokenize", {"tokens": [71, 114, 195, 188]}),
    ("/apply-template", {"messages": [{"role": "user", "content": "Hi"}]}),
]  # fmt: skip

STRANGE: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**64, 10**40, -(10**40), 0.5, -0.0, 1e308, "", " ", "x",
    "\0", "\ud800", "ü" * 50, "x" * 3000, "{{ 7*7 }}", "<|im_start|>", "../../etc/passwd", "5m", [],
    {}, [[]], [None], {"": None}, [{}], [1, "x"], {"type": "text"}, [0] * 500, [2**70], [-1],
]  # fmt: skip


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """All (container, key) inside a value."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


def damage(body: dict[str, Any], chance: random.Random) -> None:
    """Changes a body somewhere."""
    container, key = chance.choice(list(places(body)))
    match chance.randrange(4):
        case 0:
            container[key] = copy.deepcopy(chance.choice(STRANGE))
        case 1:
            del container[key]
        case 2 if isinstance(container, dict):
            container[chance.choice(["", "x", "tools", "prompt", "n", "\u202e", "model "])] = (
                copy.deepcopy(chance.choice(STRANGE))
            )
        case _:
            container[key] = [container[key]] * chance.choice([1, 2, 30])


def break_bytes(raw: bytes, chance: random.Random) -> bytes:
    """Changes a few bytes, or cuts."""
    found = bytearray(raw)
    for _ in range(chance.randrange(1, 4)):
        place = chance.randrange(len(found) or 1)
        match chance.randrange(3):
            case 0:
                found[place : place + 1] = bytes([chance.randrange(256)])
            case 1:
                del found[place : place + chance.randrange(1, 20)]
            case _:
                found[place:place] = chance.choice([b"[" * 50, b"\xff", b'"', b"\\u0000", b"1e999"])
    return bytes(found)


def memory_kb() -> int:
    """The most memory that this process ever had, in kB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def open_files() -> int:
    """How many files and sockets this process has open."""
    return len(os.listdir("/proc/self/fd"))


def n_threads() -> int:
    """How many threads there are, but for those of pools, which grow to a size of their own."""
    pools = ("asyncio_", "satchel-guide_")
    return sum(not thread.name.startswith(pools) for thread in threading.enumerate())


@pytest.mark.slow
def test_damaged_requests_do_no_damage() -> None:
    chance = random.Random(8)
    with serving(lambda _: make(says(SAYS), template=HERMES, context_length=512)) as served:
        client = HTTPConnection("127.0.0.1", served.port, timeout=300)
        counts: dict[int, int] = {}
        at_half = files = threads = 0
        for number in range(N):
            path, sound = copy.deepcopy(chance.choice(SOUND))
            for _ in range(chance.choice([1, 1, 1, 2, 4])):
                if list(places(sound)):
                    damage(sound, chance)
            raw = json.dumps(sound).encode()
            if chance.random() < 0.3:
                raw = break_bytes(raw, chance)
            client.request("POST", path, raw, {"Content-Type": "application/json"})
            answer = client.getresponse()
            said = answer.read()
            counts[answer.status] = counts.get(answer.status, 0) + 1
            assert answer.status < 500 or answer.status == 503, (path, raw, said)
            if answer.status != 200:
                assert json.loads(said)["error"], (path, raw)
            if number == N // 2:
                at_half, files, threads = memory_kb(), open_files(), n_threads()
        wait_for(lambda: n_threads() <= threads)
        assert open_files() <= files
        client.close()
        assert {200, 400} <= set(counts), counts
        assert counts[400] > N // 3
        assert not [line for line in served.log if " fault " in line]
        assert served.busy_pages() == 0
        assert memory_kb() - at_half < 20_000, "memory grows"
        done = served.post("/v1/completions", {"prompt": "Say:", "temperature": 0})
        assert done.json()["choices"][0]["text"] == SAYS


def test_damaged_http_does_no_damage() -> None:
    chance = random.Random(9)
    ask = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b'Content-Length: 32\r\n\r\n{"prompt":"Say:","max_tokens":1}'
    )
    with serving(lambda _: make(says(SAYS)), head_s=0.5, body_s=0.5) as served:
        for _ in range(N // 20):
            with served.socket() as client:
                client.sendall(break_bytes(ask, chance))
                client.shutdown(1)
                said = client.recv(4096)
                assert said == b"" or said.startswith(b"HTTP/1.1 "), said
                assert not said.startswith(b"HTTP/1.1 500")
        assert served.get("/health").status_code == 200
        assert served.busy_pages() == 0
