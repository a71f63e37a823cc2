"""Counts for Prometheus, under the names that llama.cpp's server gives them, and their text form.

Text form: prometheus.io/docs/instrumenting/exposition_formats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from satchel.api import Stats, Usage
from satchel.machine.memory import resident_bytes

PREFIX = "llamacpp:"


@dataclass
class Metrics:
    """Sums over all answers since the start."""

    prompt_tokens: int = 0  # computed, not those of a cache
    cached_tokens: int = 0
    prompt_seconds: float = 0.0
    predicted_tokens: int = 0
    predicted_seconds: float = 0.0
    longest: int = 0  # tokens of the longest prompt with its answer

    def count(self, stats: Stats) -> None:
        """Adds an answer that has ended."""
        computed = stats.prompt_tokens - stats.cached_tokens
        self.cached_tokens += stats.cached_tokens
        if stats.prompt_tokens_per_s:  # else it was cancelled before the prompt was done
            self.prompt_tokens += computed
            self.prompt_seconds += computed / stats.prompt_tokens_per_s
        self.predicted_tokens += stats.generated_tokens
        if stats.generated_tokens_per_s:
            self.predicted_seconds += (stats.generated_tokens - 1) / stats.generated_tokens_per_s
        self.longest = max(self.longest, stats.prompt_tokens + stats.generated_tokens)

    def count_embedded(self, n_tokens: int, seconds: float) -> None:
        """Adds texts that were made vectors."""
        self.prompt_tokens += n_tokens
        self.prompt_seconds += seconds

    def text(self, usages: Iterable[Usage], past: Counter[str], in_flight: int) -> str:
        """All of them, for a scraper; `usages` are those of the models that are loaded, `past` sums
        up the counts of those that were.
        """
        found = list(usages)
        counts = sum(map(counts_of, found), past)
        running = sum(usage.running for usage in found)
        pages = sum(usage.pages for usage in found)
        rows = (
            ("counter", "prompt_tokens_total", "Prompt tokens computed.", self.prompt_tokens),
            ("counter", "prompt_tokens_cached_total", "Prompt tokens reused.", self.cached_tokens),
            ("counter", "prompt_seconds_total", "Time spent on prompts.", self.prompt_seconds),
            ("counter", "tokens_predicted_total", "Tokens generated.", self.predicted_tokens),
            ("counter", "tokens_predicted_seconds_total", "Time spent on it.",
             self.predicted_seconds),
            ("counter", "n_decode_total", "Steps.", counts["steps"]),
            ("gauge", "n_tokens_max", "Most tokens of a prompt and its answer.", self.longest),
            ("gauge", "n_busy_slots_per_decode", "Requests in a step, on average.",
             _ratio(counts["shares"], counts["steps"])),
            ("gauge", "prompt_tokens_seconds", "Prompt tokens a second.",
             _ratio(self.prompt_tokens, self.prompt_seconds)),
            ("gauge", "predicted_tokens_seconds", "Generated tokens a second.",
             _ratio(self.predicted_tokens, self.predicted_seconds)),
            ("gauge", "requests_processing", "Answers in the making.", running),
            ("gauge", "requests_deferred", "Answers that wait.", max(0, in_flight - running)),
            ("gauge", "kv_pages_in_use", "Pages of the KV cache that requests use.",
             sum(usage.pages_in_use for usage in found)),
            ("gauge", "kv_pages_kept", "Pages that none uses, kept for what they hold.",
             sum(usage.pages_kept for usage in found)),
            ("counter", "kv_pages_written_total", "Pages saved on disk.", counts["pages_written"]),
            ("counter", "kv_pages_read_total", "Pages read from disk.", counts["pages_read"]),
            ("gauge", "memory_weights_bytes", "Weights of the loaded models.",
             sum(usage.memory.weights for usage in found)),
            ("gauge", "memory_activations_bytes", "What their steps work in.",
             sum(usage.memory.activations for usage in found)),
            ("gauge", "memory_kv_bytes", "All pages of their KV caches.",
             sum(usage.memory.kv for usage in found)),
            ("gauge", "memory_kv_taken_bytes", "Pages that memory has been taken for.",
             sum(usage.memory.kv_taken for usage in found)),
            ("gauge", "memory_process_bytes", "What the process has, by the system's count.",
             resident_bytes() or 0),
            ("counter", "memory_given_back_bytes_total", "Pages given back as memory was short.",
             counts["given_back"]),
            ("counter", "memory_refused_total", "Requests refused as memory was short.",
             counts["refused"]),
            ("gauge", "kv_cache_usage_ratio", "Pages of the KV cache in use.",
             _ratio(sum(usage.pages_in_use + usage.pages_kept for usage in found), pages)),
        )  # fmt: skip
        return "".join(
            f"# HELP {PREFIX}{name} {says}\n# TYPE {PREFIX}{name} {kind}\n{PREFIX}{name} {value}\n"
            for kind, name, says, value in rows
        )


def counts_of(usage: Usage) -> Counter[str]:
    """What a model has counted since it was loaded."""
    return Counter(
        steps=usage.steps,
        shares=usage.shares,
        pages_written=usage.pages_written,
        pages_read=usage.pages_read,
        given_back=usage.memory.given_back,
        refused=usage.memory.refused,
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
