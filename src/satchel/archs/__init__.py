"""Level 4: one file an architecture; `trace` makes the graph of a checkpoint."""

from satchel.archs import gemma3, llama, qwen2, qwen3
from satchel.archs.base import architectures, config_of, trace
from satchel.archs.config import Config, Source

__all__ = [
    "Config", "Source", "architectures", "config_of", "gemma3", "llama", "qwen2", "qwen3", "trace",
]  # fmt: skip
