"""Counts, as a Prometheus scraper reads them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families
from tests.serve.served import SAYS, Held, Served, held, serving, wait_for
from tests.test_api import make, says


def scrape(served: Served) -> dict[str, float]:
    answer = served.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = [
        (sample.name.removeprefix("llamacpp:"), sample.value)
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    ]
    assert len(dict(samples)) == len(samples)  # Prometheus refuses what comes twice
    return dict(samples)


def test_names_are_those_of_llama_cpp(served: Served) -> None:
    assert set(scrape(served)) == {
        "prompt_tokens_total", "prompt_tokens_cached_total", "prompt_seconds_total",
        "tokens_predicted_total", "tokens_predicted_seconds_total", "n_decode_total",
        "n_tokens_max",
        "n_busy_slots_per_decode", "prompt_tokens_seconds", "predicted_tokens_seconds",
        "requests_processing", "requests_deferred", "kv_cache_usage_ratio",
        "kv_pages_in_use", "kv_pages_kept",  # these, and what follows, are ours
        "kv_pages_written_total", "kv_pages_read_total",
        "memory_weights_bytes", "memory_activations_bytes", "memory_kv_bytes",
        "memory_kv_taken_bytes", "memory_process_bytes", "memory_given_back_bytes_total",
        "memory_refused_total",
    }  # fmt: skip


def test_answers_are_counted(served: Served) -> None:
    n_answer = len(SAYS.encode()) + 1
    for _ in range(2):
        served.post("/v1/completions", {"prompt": "Say:", "temperature": 0})
    found = scrape(served)
    assert found["prompt_tokens_total"] == 5  # the second time only the last token
    assert found["prompt_tokens_cached_total"] == 3
    assert found["tokens_predicted_total"] == 2 * n_answer
    assert found["n_tokens_max"] == 4 + n_answer
    assert found["n_decode_total"] == 2 * n_answer
    assert found["n_busy_slots_per_decode"] == 1
    assert found["predicted_tokens_seconds"] > 0
    assert 0 < found["kv_cache_usage_ratio"] < 1
    assert found["requests_processing"] == found["requests_deferred"] == 0


def test_what_only_grows_is_a_counter_and_outlives_its_model(served: Served) -> None:
    def counters() -> dict[str, float]:
        families = text_string_to_metric_families(served.get("/metrics").text)
        return {f.name: f.samples[0].value for f in families if f.type == "counter"}

    served.post("/v1/completions", {"prompt": "Say:", "temperature": 0})
    before = counters()
    assert {
        f"llamacpp:{name}" for name in ("n_decode", "kv_pages_written", "kv_pages_read")
    } <= set(before)
    assert before["llamacpp:n_decode"] > 0
    served.post("/api/generate", {"model": "fake", "keep_alive": 0})
    wait_for(lambda: not served.server.models.loaded)
    assert counters() == before
    served.post("/v1/completions", {"prompt": "Say:", "temperature": 0})
    assert counters()["llamacpp:n_decode"] == 2 * before["llamacpp:n_decode"]


def test_requests_under_way_are_seen() -> None:
    with serving(lambda _: make(says("x" * 200), kind=Held)) as served:
        stream = served.openai().completions.create(model="fake", prompt="Say:", stream=True)
        next(stream)
        assert scrape(served)["requests_processing"] == 1
        stream.close()
        held(served.llm).set()
        wait_for(lambda: served.server.in_flight == 0)
        assert scrape(served)["requests_processing"] == 0


def test_memory_is_accounted(served: Served) -> None:
    served.post("/v1/completions", {"prompt": "Say:", "temperature": 0})
    found, own = scrape(served), served.llm.usage().memory
    assert found["memory_kv_bytes"] == own.kv
    assert 0 < found["memory_kv_taken_bytes"] == own.kv_taken < own.kv
    assert found["memory_weights_bytes"] == own.weights
    assert found["memory_process_bytes"] > 1 << 20
    assert found["memory_refused_total"] == 0
