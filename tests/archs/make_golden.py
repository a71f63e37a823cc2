"""Write golden/*.json: logits of the tiny models by transformers.

pip install torch==2.13.0 transformers
PYTHONPATH=src:. python tests/archs/make_golden.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch  # pyright: ignore
import transformers  # pyright: ignore
from tests.archs import tiny

KINDS: dict[str, tuple[Any, Any]] = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
}


def logits(case: str) -> list[list[float]]:
    """Logits [tokens, vocab] of one pass over the case's tokens, in double precision."""
    config_kind, model_kind = KINDS[tiny.arch_of(case)]
    model = model_kind(config_kind(**tiny.MODELS[case], attn_implementation="eager"))
    state = {name: torch.from_numpy(array) for name, _, array in tiny.weights(case)}
    missing, unknown = model.load_state_dict(state, strict=False)
    assert not unknown, (case, unknown)
    assert set(missing) <= {"lm_head.weight"}, (case, missing)
    model.tie_weights()
    with torch.no_grad():
        given = model.double().eval()(torch.tensor([tiny.tokens(case)])).logits[0]
    return [[float(f"{value:.7g}") for value in row] for row in given.tolist()]


def main() -> None:
    """One file a case."""
    folder = Path(__file__).parent / "golden"
    folder.mkdir(exist_ok=True)
    for case in tiny.MODELS:
        rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in logits(case))
        text = f'{{"transformers": "{transformers.__version__}", "logits": [\n{rows}\n]}}\n'
        (folder / f"{case}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
