"""A soak of `satchel serve`, on Linux: `python bench/soak.py --minutes 10`.

What each of many asks gives is noted first, from a server that does nothing else. Then clients of
all kinds use a server at once: they ask, leave in the middle, send damaged requests, look around.
Now and then it is killed, or told to end, and started again over what it left on the disk.

It fails when an answer is not the one given alone, when a status is none that fits, or when the
process holds more at the end of a life, all clients at rest and the model unloaded, than at its
beginning: pages, memory of its own (--memory-mib), file handles, threads; or when it uses CPU then.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from threading import Condition, Event, Thread
from typing import Any

COMMAND = [sys.executable, "-c", "import sys; from satchel.cli.main import main; sys.exit(main())"]
CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
STORY = "The keeper of the lighthouse wrote down the weather, the ships and the birds of the day. "
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}
LATE_THREADS = 3  # that pools start when they are first needed, and keep
Said = list[tuple[str, list[float], str]]  # of each choice: text, log-probabilities, why it ended


@dataclass
class Ask:
    """A request whose answers are certain: greedy, or with a seed."""

    path: str
    body: dict[str, Any]
    alone: Said = field(default_factory=list)  # what it gives when nothing else is asked


def user(text: str) -> list[dict[str, str]]:
    """A conversation's beginning."""
    return [{"role": "user", "content": text}]


def make_asks() -> list[Ask]:
    """Of all kinds."""
    greedy, seeded = {"temperature": 0}, {"temperature": 0.9, "seed": 7}
    brief = {"role": "system", "content": "You answer in few words."}
    form = {"type": "json_schema", "json_schema": {"name": "who", "schema": SCHEMA}}
    chats: list[dict[str, Any]] = [
        {"messages": user("What is the capital of France?"), "max_tokens": 24, **greedy},
        {"messages": user("Write a line about the sea."), "max_tokens": 40, **seeded},
        {"messages": user("Name a tree."), "max_tokens": 16, "logprobs": True, **greedy},
        {"messages": [brief, *user("Name a colour.")], "max_tokens": 16, **greedy},
        {"messages": [brief, *user("Name an animal.")], "max_tokens": 16, "n": 3, **seeded},
        {"messages": user(STORY * 30 + "What did he write down?"), "max_tokens": 24, **greedy},
        {"messages": user(STORY * 30 + "Who wrote?"), "max_tokens": 24, "n": 2, **seeded},
        {"messages": user("Count to ten."), "max_tokens": 48, "stop": ["5", "five"], **greedy},
        {"messages": user("Say something odd."), "max_tokens": 32, "min_p": 0.05,
         "repeat_penalty": 1.2, "temperature": 1.5, "seed": 11},
        {"messages": user("Who are you?"), "max_tokens": 60, "response_format": form, **greedy},
        {"messages": user("Who is Ann?"), "max_tokens": 60, "response_format": form, **seeded},
    ]  # fmt: skip
    completions: list[dict[str, Any]] = [
        {"prompt": "2, 4, 6, 8,", "max_tokens": 20, **greedy},
        {"prompt": ["Once upon a time", "The moon"], "max_tokens": 24, **greedy},
        {"prompt": "Dear diary,", "max_tokens": 32, "n": 2, **seeded},
        {"prompt": STORY * 20, "max_tokens": 80, "ignore_eos": True, **greedy},
    ]
    asks = [Ask(CHAT, body) for body in chats]
    return asks + [Ask(COMPLETE, body) for body in completions]


def go_on(ask: Ask, text: str) -> Ask:
    """The next turn of a conversation, after the answer that it has."""
    said = {"role": "assistant", "content": ask.alone[0][0]}
    body = {**ask.body, "messages": [*ask.body["messages"], said, *user(text)]}
    return Ask(CHAT, body)


DAMAGED: tuple[tuple[str, Any, int], ...] = (
    (CHAT, b"{", 400),
    (CHAT, b"\xff\xfe", 400),
    (CHAT, b"[" * 200 + b"]" * 200, 400),
    (CHAT, {"messages": []}, 400),
    (CHAT, {"messages": user("x"), "no_such_field": 1}, 400),
    (CHAT, {"messages": user("x"), "temperature": "warm"}, 400),
    (CHAT, {"messages": user("x"), "model": "none"}, 404),
    (CHAT, {"messages": user(STORY * 400)}, 400),
    (CHAT, {"messages": user("x"), "response_format": {"type": "json_schema", "json_schema": {
        "name": "a", "schema": {"type": "nothing"}}}}, 400),
    (CHAT, {"messages": user("x"), "tools": [TOOL]}, 400),  # the models here know of none
    (COMPLETE, {"prompt": "x", "n": 17}, 400),
    (COMPLETE, {"prompt": [10**7]}, 400),
    ("/nowhere", {"x": 1}, 404),
    ("/v1/models", {"x": 1}, 405),
)  # fmt: skip


class GoneError(Exception):
    """The connection broke off."""


class BusyError(Exception):
    """The server said: come back later."""


@contextmanager
def unbroken() -> Generator[None]:
    """What breaks a connection off becomes a GoneError."""
    try:
        yield
    except (OSError, HTTPException) as error:
        raise GoneError(repr(error)) from None


class Wire:
    """One client's connection."""

    def __init__(self, port: int) -> None:
        self.connection = HTTPConnection("127.0.0.1", port, timeout=120)

    def send(self, path: str, body: Any = None) -> Any:
        """A response, whatever its status. Raises GoneError."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if data else {}
        with unbroken():
            self.connection.request("POST" if data else "GET", path, data, headers)
            return self.connection.getresponse()

    def read(self, response: Any) -> bytes:
        """The body of a response. Raises GoneError."""
        with unbroken():
            return bytes(response.read())

    def ask(self, ask: Ask, stream: bool) -> Said:
        """What an ask gives. Raises GoneError, BusyError, ValueError for what is wrong."""
        response = self.send(ask.path, {**ask.body, "stream": stream})
        raw = self.read(response)
        if response.status == 503 and response.headers["Retry-After"]:
            raise BusyError
        if response.status != 200:
            raise ValueError(f"status {response.status}: {raw[:300]!r}")
        if not stream:
            return said_by([json.loads(raw)])
        lines = [line[6:] for line in raw.split(b"\n") if line.startswith(b"data: ")]
        if not lines or lines.pop() != b"[DONE]":
            raise GoneError("a stream without an end")
        return said_by([json.loads(line) for line in lines])


def said_by(objects: list[dict[str, Any]]) -> Said:
    """What an answer says, of a whole object or of the chunks of a stream."""
    found: dict[int, tuple[str, list[float], str]] = {}
    for one in objects:
        if "error" in one:
            # a server that ends tells so those that it cuts off
            kind = GoneError if one["error"]["code"] == "cancelled" else ValueError
            raise kind(str(one["error"]["message"]))
        for choice in one["choices"]:
            part = choice.get("message") or choice.get("delta") or choice
            text, bits, reason = found.get(choice["index"], ("", [], ""))
            text += part.get("content") or part.get("text") or ""
            tokens = (choice.get("logprobs") or {}).get("content") or ()
            bits = [*bits, *(token["logprob"] for token in tokens)]
            found[choice["index"]] = (text, bits, reason or choice.get("finish_reason") or "")
    return [found[index] for index in sorted(found)]


@dataclass
class Held:
    """What a server's process holds when nothing is asked and no model is loaded."""

    memory_mib: float  # its own: files that are mapped are not counted
    handles: int
    threads: int


class Server:
    """`satchel serve` as a process; one life after the other over one folder of caches."""

    def __init__(self, words: list[str], folder: Path) -> None:
        self.words = words
        self.environment = {**os.environ, "SATCHEL_CACHE": str(folder)}
        self.faults: list[str] = []
        self.life = 0
        self.is_ending = False
        self.port = 0

    def start(self) -> None:
        """Starts it, and waits until it takes requests."""
        self.child = subprocess.Popen(
            [*COMMAND, "serve", *self.words, "--port", "0", "--log-json"],
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )
        ready = Event()
        self.reader = Thread(target=self._read, args=(self.child.stderr, ready))
        self.reader.start()
        if not ready.wait(120):
            self.child.kill()
            raise SystemExit(f"soak: the server does not start: {self.faults}")
        self.life += 1
        self.is_ending = False

    def _read(self, log: Any, ready: Event) -> None:
        for line in log:
            event = json.loads(line) if line.startswith("{") else {"event": "fault", "said": line}
            if event["event"] in ("fault", "stuck"):
                self.faults.append(line.strip())
            if event["event"] == "ready":
                self.port = int(event["url"].rpartition(":")[2])
                ready.set()

    def end(self, number: int) -> int:
        """Ends it by a signal; the exit code."""
        self.is_ending = True
        self.child.send_signal(number)
        code = self.child.wait(60)
        self.reader.join(10)
        return code

    def held(self) -> Held:
        """What the process holds now."""
        proc = Path(f"/proc/{self.child.pid}")
        rows = (row.split() for row in (proc / "smaps_rollup").read_text().splitlines()[1:])
        kib = {row[0]: int(row[1]) for row in rows}
        handles, threads = (len(list((proc / name).iterdir())) for name in ("fd", "task"))
        return Held(round(kib["Anonymous:"] / 1024, 1), handles, threads)

    def cpu_s(self) -> float:
        """Processor time used, in seconds."""
        text = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(text[11]) + int(text[12])) / os.sysconf("SC_CLK_TCK")


class Soak:
    """The clients, what they saw, and what was wrong."""

    def __init__(self, server: Server, model: str, args: argparse.Namespace) -> None:
        self.server = server
        self.model = model
        self.args = args
        self.asks = make_asks()
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.lives: list[dict[str, Any]] = []
        self.allowed = Event()  # clients may work
        self.over = Event()
        self.lock = Condition()
        self.n_working = 0

    def fail(self, what: str) -> None:
        """Notes what must not be."""
        with self.lock:
            self.wrong.append(what)
        print(f"soak: {what}", file=sys.stderr)

    def alone(self) -> None:
        """Notes what each ask gives by itself, streamed and whole."""
        wire = Wire(self.server.port)
        for ask in list(self.asks):
            ask.alone = wire.ask(ask, stream=False)
            if ask.path == CHAT and "n" not in ask.body:
                further = go_on(ask, "Why do you say so?")
                further.alone = wire.ask(further, stream=True)
                self.asks.append(further)
        for ask in self.asks:
            if wire.ask(ask, stream=True) != ask.alone:
                self.fail(f"alone and streamed, {shown(ask)} is another")

    # Clients

    def client(self, number: int) -> None:
        """Does one thing after the other, until all is over."""
        chance = random.Random(f"{self.args.seed}-{number}")
        deeds: list[Callable[[random.Random], None]] = [
            self.compare,
            self.leave,
            self.damage,
            self.look,
        ]
        while not self.over.is_set():
            if not self.allowed.wait(0.2):
                continue
            with self.lock:
                self.n_working += 1
            life = self.server.life
            (deed,) = chance.choices(deeds, (12, 3, 3, 2))
            try:
                deed(chance)
                self.count(deed.__name__)
            except BusyError:
                self.count("busy")
            except GoneError as error:
                self.count("cut off")
                if not self.server.is_ending and life == self.server.life:
                    self.fail(f"the connection broke off: {error}")
                time.sleep(0.05)
            except ValueError as error:
                self.fail(f"{deed.__name__}: {error}")
            finally:
                with self.lock:
                    self.n_working -= 1
                    self.lock.notify_all()

    def count(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1

    def compare(self, chance: random.Random) -> None:
        """An ask gives what it gave alone."""
        ask = chance.choice(self.asks)
        said = Wire(self.server.port).ask(ask, stream=chance.random() < 0.6)
        if said != ask.alone:
            self.fail(f"{shown(ask)} gave {said!r}, alone {ask.alone!r}")

    def leave(self, chance: random.Random) -> None:
        """Goes away in the middle of a long answer, or of its prompt."""
        wire = Wire(self.server.port)
        text = STORY * chance.choice((1, 40)) + str(chance.random())
        body = {"prompt": text, "max_tokens": 400, "ignore_eos": True, "n": chance.choice((1, 3))}
        with unbroken():
            if chance.random() < 0.3:
                wire.connection.request("POST", COMPLETE, json.dumps(body))
                time.sleep(chance.random() * 0.2)
            else:
                response = wire.send(COMPLETE, {**body, "stream": True})
                for _ in range(chance.randrange(12)):
                    response.readline()
                response.close()
        wire.connection.close()

    def damage(self, chance: random.Random) -> None:
        """A request that can't be answered is told so."""
        path, body, status = chance.choice(DAMAGED)
        wire = Wire(self.server.port)
        response = wire.send(path, body)
        told = json.loads(wire.read(response) or b"{}")
        if response.status == 503:
            raise BusyError
        if response.status != status or not told["error"]["message"]:
            raise ValueError(
                f"{path} {str(body)[:80]} gave {response.status}, not {status}: {told}"
            )

    def look(self, chance: random.Random) -> None:
        """What can be seen of the server is there."""
        path = chance.choice(("/", "/health", "/metrics", "/sessions", "/v1/models", "/api/ps"))
        wire = Wire(self.server.port)
        response = wire.send(path)
        if response.status != 200 or not wire.read(response):
            raise ValueError(f"{path} gave {response.status}")

    # Lives

    def rest(self) -> Held:
        """Has all clients wait, and the model unloaded; what the process holds then."""
        self.allowed.clear()
        with self.lock:
            if not self.lock.wait_for(lambda: self.n_working == 0, 120):
                self.fail("clients wait for answers that do not come")
        wire = Wire(self.server.port)
        if not within(10, lambda: self.metric("requests_processing") == 0):
            self.fail("answers go on that no one waits for")
        if not within(10, lambda: self.metric("kv_pages_in_use") == 0):
            self.fail(f"{self.metric('kv_pages_in_use'):g} pages are in use by no one")
        wire.read(wire.send("/api/generate", {"model": self.model, "keep_alive": 0}))
        if not within(10, lambda: json.loads(wire.read(wire.send("/api/ps")))["models"] == []):
            self.fail("the model is not unloaded")
        wire.connection.close()
        time.sleep(3)  # the model is freed, connections of clients that left are closed
        return self.server.held()

    def metric(self, name: str) -> float:
        """A value of /metrics."""
        wire = Wire(self.server.port)
        lines = wire.read(wire.send("/metrics")).decode().splitlines()
        wire.connection.close()
        return next(
            float(line.split()[1]) for line in lines if line.startswith(f"llamacpp:{name} ")
        )

    def live(self, seconds: float, number: int) -> None:
        """One life of the server, ended by a signal."""
        begun = time.monotonic()
        self.allowed.set()
        if number == signal.SIGKILL:
            time.sleep(seconds)
            self.server.end(number)
        else:
            time.sleep(min(15, seconds / 4))  # what is made once is made
            before = self.rest()
            self.allowed.set()
            time.sleep(max(0, seconds - (time.monotonic() - begun)))
            after = self.rest()
            self.check(before, after)
            self.allowed.set()  # it ends while it is asked
            time.sleep(0.3)
            if code := self.server.end(number):
                self.fail(f"the server ended with code {code}")
        self.allowed.clear()
        lived = round(time.monotonic() - begun, 1)
        self.lives.append({"seconds": lived, "ended_by": signal.Signals(number).name})
        if number != signal.SIGKILL:
            self.lives[-1] |= {"before": asdict(before), "after": asdict(after)}

    def check(self, before: Held, after: Held) -> None:
        """What is held at rest is what it was, and nothing runs."""
        if after.memory_mib > before.memory_mib + self.args.memory_mib:
            self.fail(f"memory grew from {before.memory_mib} to {after.memory_mib} MiB")
        if after.handles > before.handles:
            self.fail(f"{before.handles} file handles became {after.handles}")
        if after.threads > before.threads + LATE_THREADS:
            self.fail(f"{before.threads} threads became {after.threads}")
        cpu_s = self.server.cpu_s()
        time.sleep(2)
        if (used := self.server.cpu_s() - cpu_s) > 0.05:
            self.fail(f"an idle server used {used:.2f} s of CPU in 2 s")

    def run(self) -> None:
        """All lives: one ends by a kill, one by being told to, the last and longest too."""
        clients = [Thread(target=self.client, args=(n,)) for n in range(self.args.clients)]
        lives = ((0.2, signal.SIGKILL), (0.2, signal.SIGTERM), (0.6, signal.SIGTERM))
        self.server.start()
        try:
            self.alone()
            for client in clients:
                client.start()
            for share, number in lives:
                if self.lives:
                    self.server.start()
                self.live(share * 60 * self.args.minutes, number)
        finally:
            self.over.set()
            for client in clients:
                if client.ident:
                    client.join()
            self.server.child.kill()
        for line in self.server.faults:
            self.fail(f"the log tells of a fault: {line}")


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Whether something comes true in time."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def shown(ask: Ask) -> str:
    """An ask, in short."""
    return f"{ask.path} {json.dumps(ask.body)[:160]}"


def main(argv: list[str] | None = None) -> int:
    """Prints what was seen as JSON; 1 when anything was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0, help="of what clients choose to do")
    parser.add_argument("--memory-mib", type=float, default=32, help="growth that is no leak")
    args = parser.parse_args(argv)
    from satchel.files.store import resolve
    from satchel.serve.models import name_of

    path = str(resolve(args.model))
    words = [path, "-c", "2048", "--parallel", "4", "--max-requests", "12", "--disk-cache", "64M"]
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Server(words, Path(folder)), name_of(path), args)
        soak.run()
    found = {"minutes": args.minutes, "clients": args.clients, "did": dict(soak.counts),
             "lives": soak.lives, "wrong": soak.wrong}  # fmt: skip
    print(json.dumps(found, indent=2))
    return int(bool(soak.wrong))


if __name__ == "__main__":
    sys.exit(main())
