"""Load on OpenAI-compatible servers: `python bench/load.py --url http://127.0.0.1:8080`.

For each number of clients the servers (--url may be repeated) are asked in turn by the same
prompts, streamed; a JSON line each: requests and tokens a second, time to the first token, time
between tokens. In a mixed load (--long-every 4) some prompts are long: how fast those under way go
on meanwhile, and how long short ones wait, are figures of their own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import urlsplit

WORDS = ("river", "stone", "lantern", "winter", "music", "garden", "paper", "silver", "engine")


@dataclass
class Answer:
    """When its request was sent, and when text came, in seconds; how many tokens came."""

    sent: float
    arrivals: list[float] = field(default_factory=list)
    tokens: int = 0
    prompt_tokens: int = 0
    is_long: bool = False


@dataclass
class Client:
    """Asks one server, over a new connection each time: some close theirs unannounced."""

    url: str
    model: str
    max_tokens: int
    key: str | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        self.connection = HTTPConnection(parts.hostname or "", parts.port or 80, timeout=600)

    def ask(self, prompt: str) -> Answer:
        """One answer of exactly `max_tokens` tokens. Raises OSError or ValueError."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        answer = Answer(time.perf_counter())
        self.connection.close()
        self.connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = self.connection.getresponse()
        if response.status != 200:
            raise ValueError(f"status {response.status}: {response.read(300)!r}")
        while line := response.readline():
            if line.startswith(b"data: {"):
                self._read(json.loads(line[6:]), answer)
        if not answer.tokens:
            raise ValueError("the server sent no usage")
        return answer

    def _read(self, chunk: dict[str, Any], answer: Answer) -> None:
        if "error" in chunk:
            raise ValueError(f"the stream broke off: {chunk['error']}")
        if any((choice.get("delta") or {}).get("content") for choice in chunk["choices"]):
            answer.arrivals.append(time.perf_counter())
        if usage := chunk.get("usage"):
            answer.tokens = usage["completion_tokens"]
            answer.prompt_tokens = usage["prompt_tokens"]


def prompts(n: int, n_words: int, salt: str, every: int = 0, long_words: int = 0) -> list[str]:
    """Prompts of which no two begin alike, so that no server gains by remembering.

    Of `every` so many the last has `long_words`; 0: none has.
    """
    made: list[str] = []
    for i in range(n):
        count = long_words if every and (i + 1) % every == 0 else n_words
        words = " ".join(WORDS[(i + j) % len(WORDS)] for j in range(count))
        made.append(f"{salt} {i}: go on with {words}")
    return made


def load(args: argparse.Namespace, url: str, model: str, n_clients: int, salt: str) -> Any:
    """Has `n_clients` ask side by side; what they saw."""
    todo, n = SimpleQueue[str](), max(args.requests, 2 * n_clients)
    for prompt in prompts(n, args.prompt_words, salt, args.long_every, args.long_words):
        todo.put(prompt)
    usual = max(map(len, prompts(n, args.prompt_words, salt)))
    answers: list[Answer] = []
    failures: list[str] = []

    def work() -> None:
        client = Client(url, model, args.max_tokens, args.api_key)
        while True:
            try:
                prompt = todo.get_nowait()
            except Empty:
                return
            try:
                answers.append(client.ask(prompt))
                answers[-1].is_long = len(prompt) > usual
            except (OSError, ValueError, HTTPException) as error:
                failures.append(str(error))
                client = Client(url, model, args.max_tokens, args.api_key)

    threads = [threading.Thread(target=work) for _ in range(n_clients)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return report(answers, failures, time.perf_counter() - begun)


def report(answers: list[Answer], failures: list[str], wall_s: float) -> dict[str, Any]:
    """The figures of one load."""
    first, long = (
        [1000 * (a.arrivals[0] - a.sent) for a in answers if a.arrivals and a.is_long == is_long]
        for is_long in (False, True)
    )
    between = [
        1000 * (later - earlier)
        for a in answers
        for earlier, later in zip(a.arrivals, a.arrivals[1:], strict=False)
    ]
    return {
        "requests": len(answers),
        "failures": len(failures),
        **({"failure": failures[0]} if failures else {}),
        "wall_s": round(wall_s, 2),
        "prompt_tokens": round(statistics.mean(a.prompt_tokens for a in answers)) if answers else 0,
        "requests_per_s": round(len(answers) / wall_s, 2),
        "tokens_per_s": round(sum(a.tokens for a in answers) / wall_s, 1),
        "ttft_ms_p50": percentile(first, 50),
        "ttft_ms_p99": percentile(first, 99),
        "inter_token_ms_p50": percentile(between, 50),
        "inter_token_ms_p99": percentile(between, 99),
        "inter_token_ms_max": percentile(between, 100),
        **({"long_requests": len(long), "long_ttft_ms_p50": percentile(long, 50)} if long else {}),
    }


def percentile(values: list[float], rank: float) -> float | None:
    """The value that `rank` percent do not exceed; None of none."""
    if not values:
        return None
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(rank / 100 * len(ordered)))], 2)


def first_model(url: str, key: str | None) -> str:
    """The first model that a server lists."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port or 80, timeout=30)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    connection.request("GET", "/v1/models", headers=headers)
    return str(json.loads(connection.getresponse().read())["data"][0]["id"])


def rounds(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All loads, the servers in turn."""
    models = {url: args.model or first_model(url, args.api_key) for url in args.url}
    for url, model in models.items():
        Client(url, model, 4, args.api_key).ask("Hi")  # loads the model, warms the caches
    for n_clients in args.clients:
        for turn in range(args.rounds):
            for url, model in models.items():
                found = load(args, url, model, n_clients, f"{n_clients}-{turn}")
                yield {"url": url, "model": model, "clients": n_clients, "round": turn, **found}


COLUMNS = ("requests_per_s", "tokens_per_s", "ttft_ms_p50", "ttft_ms_p99", "inter_token_ms_p50",
           "inter_token_ms_p99")  # fmt: skip


def table(lines: list[dict[str, Any]]) -> str:
    """Medians over the rounds, in Markdown, the servers one below the other."""
    rows = [("clients", "server", *COLUMNS)]
    for n_clients in dict.fromkeys(line["clients"] for line in lines):
        for url in dict.fromkeys(line["url"] for line in lines):
            of = [line for line in lines if (line["clients"], line["url"]) == (n_clients, url)]
            values = [[line[name] for line in of if line[name] is not None] for name in COLUMNS]
            shown = (f"{statistics.median(found):.5g}" if found else "-" for found in values)
            rows.append((str(n_clients), url, *shown))
    rows.insert(1, ("---",) * len(rows[0]))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(argv: list[str] | None = None) -> int:
    """Prints a JSON line for each load; 1 when any request failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", action="append", required=True, help="a server; may be repeated")
    parser.add_argument("--model", help="default: the first that the server lists")
    parser.add_argument("--api-key")
    parser.add_argument(
        "--clients", type=lambda text: [int(n) for n in text.split(",")], default=[1, 4, 16]
    )
    parser.add_argument("--requests", type=int, default=16, help="at least; two for each client")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--prompt-words", type=int, default=48)
    parser.add_argument("--long-every", type=int, default=0, help="one prompt in so many is long")
    parser.add_argument("--long-words", type=int, default=1500)
    parser.add_argument("--table", action="store_true", help="medians at the end, on stderr")
    args = parser.parse_args(argv)
    lines: list[dict[str, Any]] = []
    for line in rounds(args):
        print(json.dumps(line), flush=True)
        lines.append(line)
    if args.table:
        print(table(lines), file=sys.stderr)
    return int(any(line["failures"] for line in lines))


if __name__ == "__main__":
    sys.exit(main())
