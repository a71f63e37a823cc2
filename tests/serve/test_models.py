"""Several models: loaded when asked for, unloaded when idle, never too many."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest
from tests.engine.fake import FakeModel
from tests.serve.served import Held, Served, held, serving, wait_for
from tests.test_api import make, says

from satchel.api import LLM
from satchel.base.errors import CrowdedError, MemoryLimitError, OptionError
from satchel.engine.relief import REFUSE
from satchel.machine.memory import Pressure
from satchel.serve import ollama_models, run
from satchel.serve.sessions import Sessions, shared

COMPLETE = "/v1/completions"


def named(reference: str) -> LLM:
    """A model that says its name."""
    return make(says(reference))


def ask(served: Served, model: str | None, **fields: Any) -> Any:
    body = {"prompt": "Say:", "temperature": 0, **fields}
    return served.post(COMPLETE, body | ({"model": model} if model else {}))


def says_of(answer: Any) -> str:
    return str(answer.json()["choices"][0]["text"])


def test_models_are_loaded_on_demand() -> None:
    with serving(named, ["dir/a.gguf", "b.gguf"], {"c": "c"}) as served:
        assert served.made == []
        assert [m["id"] for m in served.get("/v1/models").json()["data"]] == ["a", "b", "c"]
        assert says_of(ask(served, "b")) == "b.gguf"
        assert says_of(ask(served, None)) == "dir/a.gguf"  # the first named
        assert says_of(ask(served, "c")) == "c"
        assert ask(served, "dir/a.gguf").status_code == 404  # names, not paths
        assert len(served.made) == 3


def test_a_model_that_goes_from_the_store() -> None:
    stored = {"c": "c"}
    with serving(named, ["a.gguf"], stored) as served:
        assert ask(served, "c").status_code == 200
        del stored["c"]
        assert ask(served, "c").status_code == 200  # it is in memory still
        assert served.get("/api/ps").json() == {"models": []}
        answer = served.post("/api/show", {"model": "c"})
        assert (answer.status_code, "has gone" in answer.text) == (404, True)


def test_a_model_that_is_unloaded_while_it_is_listed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(name: str, _: str) -> dict[str, Any]:
        served.post("/api/generate", {"model": "fake", "keep_alive": 0})
        wait_for(lambda: not served.server.models.loaded)
        return {"name": name}

    monkeypatch.setattr(ollama_models, "_facts", read)
    assert ask(served, "fake").status_code == 200
    assert served.get("/api/ps").json() == {"models": []}


def test_the_longest_idle_one_makes_room() -> None:
    with serving(named, ["a.gguf", "b.gguf", "c.gguf"], max_loaded=2) as served:
        for name in ("a", "b", "a", "c"):
            assert ask(served, name).status_code == 200
        assert sorted(served.server.models.loaded) == ["a", "c"]
        assert served.made[1]._speaker.model.closed  # type: ignore[attr-defined]


def test_a_model_at_work_is_not_unloaded() -> None:
    def load(reference: str) -> LLM:
        return make(says(reference * 20), kind=Held)

    with serving(load, ["a.gguf", "b.gguf"], max_loaded=1) as served:
        stream = served.openai().completions.create(model="a", prompt="Say:", stream=True)
        next(stream)
        refused = ask(served, "b")
        assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
        assert served.post("/api/generate", {"model": "a", "keep_alive": 0}).status_code == 200
        held(served.llm).set()
        assert "".join(chunk.choices[0].text for chunk in stream).endswith("a.gguf")
        assert ask(served, "b", max_tokens=1).status_code == 200


def test_an_idle_model_is_unloaded_and_comes_back() -> None:
    with serving(named, keep_alive_s=0.1) as served:
        assert says_of(ask(served, None)) == "fake.gguf"
        model = served.llm._speaker.model
        wait_for(lambda: not served.server.models.loaded and model.closed)  # type: ignore[attr-defined]
        assert says_of(ask(served, None)) == "fake.gguf"
        served.post("/api/generate", {"model": "fake", "keep_alive": -1})
        time.sleep(0.3)
        assert list(served.server.models.loaded) == ["fake"]


def test_many_who_come_at_once_load_it_once() -> None:
    def slowly(reference: str) -> LLM:
        time.sleep(0.1)
        return named(reference)

    with serving(slowly) as served:
        threads = [threading.Thread(target=ask, args=(served, None)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(served.made) == 1


def test_loading_one_does_not_hold_up_another() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def load(reference: str) -> LLM:
        if reference == "b.gguf":
            begun.set()
            assert go_on.wait(300)
        return named(reference)

    with serving(load, ["a.gguf", "b.gguf"]) as served:
        ask(served, "a")
        waits = threading.Thread(target=ask, args=(served, "b"))
        waits.start()
        assert begun.wait(300)
        assert says_of(ask(served, "a")) == "a.gguf"
        go_on.set()
        waits.join()


def test_a_model_that_cannot_be_loaded() -> None:
    def fails(_: str) -> LLM:
        raise MemoryLimitError("this model needs 7 GB, and there are 2")

    with serving(fails) as served:
        answer = ask(served, None)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "out_of_memory")
        assert "7 GB" in answer.json()["error"]["message"]
        assert served.server.in_flight == 0


def test_two_models_of_one_name() -> None:
    with (
        pytest.raises(OptionError, match="two models of the name 'a'"),
        serving(named, ["x/a.gguf", "y/a.gguf"]),
    ):
        pass


def test_sessions_take_what_begins_alike() -> None:
    llm = make()
    sessions = Sessions(llm, most=2)
    first, second = sessions.take([1, 2, 3]), sessions.take([1, 2, 3])
    assert first is not second  # the first is busy
    sessions.give(first, [1, 2, 3, 4])
    sessions.give(second, [9, 9])
    assert sessions.take([1, 2, 3, 4, 5]) is first
    assert sessions.take([9, 9, 1]) is second
    sessions.give(first, [1, 2, 3, 4], [5, 6, 7, 8, 9])
    third = sessions.take([1, 7])  # would throw away most of what the first one knows
    assert third not in (first, second)
    sessions.give(third, [1, 7])
    sessions.give(second, [9, 9])
    assert sessions.list() == [second, third]  # two at most: the longest idle one went
    sessions.give(sessions.take([1, 7]), [])  # it failed: nothing is known of it
    assert sessions.list() == [second]
    unused = sessions.take([5])
    sessions.put_back(unused)
    sessions.put_back(sessions.take([9, 9]))
    assert sessions.list() == [second]
    assert second.tokens == (9, 9)
    sessions.close()
    assert sessions.list() == []


def test_shared_beginnings() -> None:
    assert [shared([1, 2, 3], other) for other in ([], [1], [1, 2, 4], [1, 2, 3, 4], [2])] == [
        0, 1, 2, 3, 0
    ]  # fmt: skip


def test_a_closed_model_is_an_error_and_no_hang() -> None:
    with serving(lambda _: make(says("x"), kind=FakeModel)) as served:
        ask(served, None)
        served.llm.close()
        assert ask(served, None).status_code == 503


def test_models_load_side_by_side() -> None:
    both = threading.Barrier(2, timeout=300)

    def load(reference: str) -> LLM:
        both.wait()
        return named(reference)

    with serving(load, ["a.gguf", "b.gguf"]) as served:
        waiting = threading.Thread(target=ask, args=(served, "a"))
        waiting.start()
        assert says_of(ask(served, "b")) == "b.gguf"
        waiting.join()
        assert sorted(served.server.models.loaded) == ["a", "b"]


def test_no_more_load_at_once_than_may_be_loaded() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def load(reference: str) -> LLM:
        begun.set()
        assert go_on.wait(300)
        return named(reference)

    with serving(load, ["a.gguf", "b.gguf"], max_loaded=1) as served:
        waiting = threading.Thread(target=ask, args=(served, "a"))
        waiting.start()
        assert begun.wait(300)
        assert ask(served, "b").status_code == 503
        go_on.set()
        waiting.join()
        assert says_of(ask(served, "b")) == "b.gguf"


def test_a_model_whose_clients_left_while_it_loaded_expires() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def load(reference: str) -> LLM:
        begun.set()
        assert go_on.wait(300)
        return named(reference)

    with serving(load, keep_alive_s=0.05) as served:
        with served.socket() as client:
            body = b'{"prompt": "Say:"}'
            head = f"POST {COMPLETE} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
            client.sendall(f"{head}\r\n\r\n".encode() + body)
            assert begun.wait(300)
        time.sleep(0.05)
        go_on.set()
        wait_for(lambda: bool(served.made))
        wait_for(lambda: not served.server.models.loaded)


def test_a_model_that_failed_to_load_is_tried_anew() -> None:
    tries: list[str] = []

    def load(reference: str) -> LLM:
        tries.append(reference)
        if len(tries) == 1:
            raise MemoryLimitError("no room")
        return named(reference)

    with serving(load) as served:
        assert ask(served, None).status_code == 503
        assert says_of(ask(served, None)) == "fake.gguf"


def test_what_has_no_room_beside_others_takes_that_of_idle_ones() -> None:
    there: list[LLM] = []

    def load(reference: str) -> LLM:
        open_ones = [llm for llm in there if not llm._speaker.model.closed]  # type: ignore[attr-defined]
        if reference == "large.gguf" and open_ones:
            raise CrowdedError("the model needs 7 GB; other models take 2 GB, and 8 are allowed")
        there.append(make(says(reference * 20), kind=Held))
        return there[-1]

    references = ["a.gguf", "b.gguf", "large.gguf"]
    with serving(load, references, max_loaded=3) as served:
        ask(served, "a", max_tokens=1)
        stream = served.openai().completions.create(model="b", prompt="Say:", stream=True)
        next(stream)
        refused = ask(served, "large", max_tokens=1)
        assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
        assert "other models take 2 GB" in refused.json()["error"]["message"]
        assert list(served.server.models.loaded) == ["b"]
        held(there[1]).set()
        assert "".join(chunk.choices[0].text for chunk in stream).endswith("b.gguf")
        assert ask(served, "large", max_tokens=1).status_code == 200
        assert list(served.server.models.loaded) == ["large"]


def test_short_memory_is_503_and_a_time_to_come_back() -> None:
    with serving() as served:
        ask(served, None)
        relief = served.llm._speaker.engine.relief
        relief.read = lambda: Pressure(available_bytes=0)
        relief._due_s = 0.0
        relief.stage = REFUSE
        answer = ask(served, None)
        assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
        assert answer.json()["error"]["code"] == "out_of_memory"
        relief.read = Pressure
        relief._due_s = 0.0
        assert ask(served, None).status_code == 200


def test_an_idle_server_gives_memory_back_when_it_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()

    class Signal:
        """Stands for a watch of the machine's pressure."""

        def fileno(self) -> int:
            return ours.fileno()

        def clear(self) -> None:
            ours.recv(1)

        def close(self) -> None:
            ours.close()

    monkeypatch.setattr(run, "watch_pressure", Signal)
    with serving() as served, theirs:
        ask(served, None)
        assert served.llm.usage().memory.kv_taken > 0
        relief = served.llm._speaker.engine.relief
        relief.read = lambda: Pressure(available_bytes=0)
        relief._due_s = 0.0
        theirs.send(b"!")
        wait_for(lambda: served.llm.usage().memory.kv_taken == 0)
        served.llm.close()
        theirs.send(b"!")  # a closed one has nothing to give
        assert served.get("/health").status_code == 200
    assert ours.fileno() == -1
