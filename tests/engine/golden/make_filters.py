"""Writes filters.jsonl: what llama.cpp's samplers leave of fixed logits, and how likely it is then.

    python tests/engine/golden/make_filters.py PATH/TO/libllama.so

Only this needs llama.cpp; the test reads what it wrote.
"""

from __future__ import annotations

import ctypes
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

I32, F32, PTR = ctypes.c_int32, ctypes.c_float, ctypes.c_void_p
DRY_FOR_TESTS = "_Z30llama_sampler_init_dry_testingffiiRKSt6vectorIS_IiSaIiEESaIS1_EE"
N = 40
TINY = 1e-12  # less likely than this is not written
HISTORY = [5, 7, 9, 3, 5, 7, 9, 11, 20, 5, 7, 9, 3, 1, 5, 7, 9]


class Token(ctypes.Structure):
    _fields_ = (("id", I32), ("logit", F32), ("p", F32))


class Tokens(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.POINTER(Token)),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    )


class Vector(ctypes.Structure):
    """A std::vector as its memory lies."""

    _fields_ = (("begin", PTR), ("end", PTR), ("room", PTR))

    @classmethod
    def of(cls, array: Any) -> Vector:
        begin = ctypes.addressof(array)
        end = begin + ctypes.sizeof(array)
        return cls(begin, end, end)


class Llama:
    def __init__(self, path: str) -> None:
        self.lib = ctypes.CDLL(path)
        self.lib.llama_sampler_apply.argtypes = (PTR, ctypes.POINTER(Tokens))
        self.lib.llama_sampler_accept.argtypes = (PTR, I32)

    def make(self, name: str, *args: Any) -> int:
        call = getattr(self.lib, name)
        call.restype = PTR
        return call(*args)

    def dry(
        self, multiplier: float, base: float, allowed: int, last_n: int, breakers: list[list[int]]
    ) -> int:
        arrays = [(I32 * len(one))(*one) for one in breakers]
        vectors = (Vector * len(arrays))(*map(Vector.of, arrays))
        args = (F32(multiplier), F32(base), I32(allowed), I32(last_n))
        return self.make(DRY_FOR_TESTS, *args, ctypes.byref(Vector.of(vectors)))

    def apply(self, samplers: list[int], logits: list[float]) -> tuple[dict[str, float], int]:
        """The probabilities of the tokens that are left, by id, and the selected one, or -1."""
        data = (Token * len(logits))(*[(i, x, 0) for i, x in enumerate(logits)])
        tokens = Tokens(data, len(logits), -1, False)
        for sampler in samplers:
            self.lib.llama_sampler_apply(sampler, ctypes.byref(tokens))
        left = [tokens.data[i] for i in range(tokens.size)]
        highest = max(token.logit for token in left)
        weights = {token.id: math.exp(token.logit - highest) for token in left}
        total = math.fsum(weights.values())
        selected = left[tokens.selected].id if tokens.selected >= 0 else -1
        kept = {str(i): float(f"{w / total:.6g}") for i, w in sorted(weights.items()) if w > TINY}
        return kept, selected


def samplers(llama: Llama, p: dict[str, Any]) -> list[int]:
    """As llama.cpp's programs chain them; what is not in `p` is left out."""
    keep = ctypes.c_size_t(0)
    chain: list[int] = []
    if "repeat_penalty" in p:
        args = (F32(p[f"{name}_penalty"]) for name in ("repeat", "frequency", "presence"))
        n = I32(p["repeat_last_n"])
        chain.append(llama.make("llama_sampler_init_penalties", I32(N), n, *args))
    if "dry_multiplier" in p:
        breakers = [list(text.encode()) for text in p["dry_sequence_breakers"]]
        allowed, last_n = p["dry_allowed_length"], p["dry_penalty_last_n"]
        chain.append(llama.dry(p["dry_multiplier"], p["dry_base"], allowed, last_n, breakers))
    if "top_n_sigma" in p:
        chain.append(llama.make("llama_sampler_init_top_n_sigma", F32(p["top_n_sigma"])))
    if "top_k" in p:
        chain.append(llama.make("llama_sampler_init_top_k", I32(p["top_k"])))
    for name, field in (("typical", "typical_p"), ("top_p", "top_p"), ("min_p", "min_p")):
        if field in p:
            chain.append(llama.make(f"llama_sampler_init_{name}", F32(p[field]), keep))
    if "xtc_threshold" in p:
        args = (F32(p["xtc_probability"]), F32(p["xtc_threshold"]), keep, ctypes.c_uint32(1))
        chain.append(llama.make("llama_sampler_init_xtc", *args))
    if "temperature" in p:
        span, exponent = p.get("dynatemp_range", 0), p.get("dynatemp_exponent", 1)
        args = (F32(p["temperature"]), F32(span), F32(exponent))
        chain.append(llama.make("llama_sampler_init_temp_ext", *args))
    for sampler in chain:
        for token in HISTORY:
            llama.lib.llama_sampler_accept(sampler, I32(token))
    return chain


PENALTIES = {
    "repeat_last_n": 8,
    "repeat_penalty": 1.3,
    "frequency_penalty": 0.2,
    "presence_penalty": 0.1,
}


def dry(**changed: Any) -> dict[str, Any]:
    return {
        "dry_multiplier": 0.8,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_penalty_last_n": 64,
        "dry_sequence_breakers": ["*"],
    } | changed


CASES: list[dict[str, Any]] = [
    *({"top_k": k} for k in (1, 7)),
    *({"top_p": p} for p in (0.1, 0.5, 0.95)),
    *({"min_p": p} for p in (0.05, 0.5)),
    *({"typical_p": p} for p in (0.1, 0.5, 0.9)),
    *({"top_n_sigma": n} for n in (0.3, 1.0, 2.5)),
    *({"xtc_probability": 1.0, "xtc_threshold": t} for t in (0.02, 0.1, 0.5)),
    *({"temperature": t} for t in (0.3, 1.7)),
    *(
        {"temperature": t, "dynatemp_range": r, "dynatemp_exponent": e}
        for t, r, e in ((0.8, 0.5, 1.0), (1.0, 1.5, 2.0), (0.0, 1.0, 1.0))
    ),
    PENALTIES,
    dry(),
    dry(dry_multiplier=1.5, dry_base=3.0, dry_allowed_length=1),
    dry(dry_penalty_last_n=9),
    dry(dry_sequence_breakers=[chr(9)]),  # breakers are the texts of tokens
    dry(dry_sequence_breakers=[chr(3) + chr(1)]),
    dry(dry_sequence_breakers=[chr(3)], dry_allowed_length=1),
    PENALTIES
    | dry()
    | {"top_n_sigma": 2.5, "top_k": 12, "typical_p": 0.95, "top_p": 0.9, "min_p": 0.02}
    | {"xtc_probability": 1.0, "xtc_threshold": 0.2, "temperature": 0.8},
]


def mirostat(llama: Llama, rows: list[list[float]], tau: float, eta: float) -> list[dict[str, Any]]:
    """Steps of one sampler through the rows, over and over: what is left, and what is drawn."""
    args = (ctypes.c_uint32(1), F32(tau), F32(eta))
    sampler = llama.make("llama_sampler_init_mirostat_v2", *args)
    steps: list[dict[str, Any]] = []
    for step in range(9):
        kept, selected = llama.apply([sampler], rows[step % len(rows)])
        steps.append({"row": step % len(rows), "kept": kept, "selected": selected})
    return steps


def main() -> None:
    llama = Llama(sys.argv[1])
    random = np.random.default_rng(4)
    rows = [np.round(random.normal(size=N) * spread, 3).tolist() for spread in (0.4, 1.5, 4)]
    cases = [
        {"params": params, "row": n, "kept": llama.apply(samplers(llama, params), row)[0]}
        for params in CASES
        for n, row in enumerate(rows)
    ]
    steps = [
        {"mirostat_tau": tau, "mirostat_eta": eta, "steps": mirostat(llama, rows, tau, eta)}
        for tau, eta in ((1.0, 0.1), (2.0, 0.5), (4.0, 0.3))
    ]
    lines = [json.dumps(one) for one in ({"rows": rows, "history": HISTORY}, *cases, *steps)]
    Path(__file__).with_name("filters.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
