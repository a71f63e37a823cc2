"""Results kept under a name, and later ones held against them.

A difference counts only beyond the noise: more than `SDS` standard deviations of both runs together
and more than `LEAST`. A test is slower when both its tokens per second and its fraction of the
limit have fallen so far: what a slow hour of the machine takes from both, it takes from the limit
too.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from satchel.base.errors import OptionError
from satchel.base.kept import keep_json
from satchel.base.options import options
from satchel.compiler.pipeline import source_digest
from satchel.machine import this_machine
from satchel.measure.bench import Result

SCHEMA = 1
SDS = 3.0
LEAST = 0.02
VERSIONS = ("satchel", "numpy", "llvmlite")


@dataclass(frozen=True)
class Setting:
    """Where and with what the results were measured: differences here may explain others."""

    machine: str
    cores: int
    system: str
    versions: Mapping[str, str]
    source: str  # fingerprint of all that decides what the kernels are
    kernels: Mapping[str, str]  # the key of each kernel's machine code

    def differences(self, other: Setting) -> list[str]:
        """What has changed from this one to the other, in words."""
        named = {"machine": "machine", "cores": "cores", "system": "system"}
        found = [
            f"{word}: {getattr(self, name)} -> {getattr(other, name)}"
            for name, word in named.items()
            if getattr(self, name) != getattr(other, name)
        ]
        for name in sorted({*self.versions, *other.versions}):
            before, after = self.versions.get(name, "none"), other.versions.get(name, "none")
            if before != after:
                found.append(f"{name}: {before} -> {after}")
        if self.kernels != other.kernels:
            names = {*self.kernels, *other.kernels}
            n = sum(self.kernels.get(name) != other.kernels.get(name) for name in names)
            found.append(f"machine code: {n} of {len(names)} kernels")
        return found


@dataclass(frozen=True)
class Comparison:
    """One test then and now. `change` and `noise` are fractions: 0.05 is 5 percent."""

    model: str
    test: str
    threads: int
    before: float
    after: float
    change: float
    change_of_fraction: float
    noise: float
    verdict: Literal["slower", "faster", "same"]


def this_setting(kernels: Mapping[str, str]) -> Setting:
    """The setting of this process; `kernels` are those of the plan that was measured."""
    machine = this_machine()
    versions = {"python": platform.python_version()}
    for name in VERSIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # run from a source tree
            versions[name] = "source"
    return Setting(
        machine.name, len(machine.cores), machine.system, versions, source_digest(), dict(kernels)
    )


def baseline_path(name: str) -> Path:
    """Where the baseline of this name lies. Raises OptionError for what can't be a file's name."""
    if not re.fullmatch(r"[\w][\w.+\-]{0,99}", name):
        raise OptionError(f"{name!r} can't name a baseline; use letters, digits and . + - _")
    return options().cache_dir / "baselines" / f"{name}.json"


def save_baseline(name: str, results: Iterable[Result], setting: Setting) -> Path:
    """Keep results, in the place of older ones of this name. Raises OptionError, CacheError."""
    path = baseline_path(name)
    content = {
        "schema": SCHEMA,
        "setting": asdict(setting),
        "results": [result.as_dict() for result in results],
    }
    keep_json(path, content)
    return path


def load_baseline(name: str) -> tuple[list[Result], Setting]:
    """What was kept. Raises OptionError when there is none of this name, or no sound one."""
    path = baseline_path(name)
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise OptionError(f"the baseline {path} is of another version; --save it anew")
        results: list[Result] = []
        for line in content["results"]:
            line.pop("fraction_of_limit")
            results.append(Result(**line))
        return results, Setting(**content["setting"])
    except FileNotFoundError:
        known = sorted(file.stem for file in path.parent.glob("*.json"))
        there = f"there are {', '.join(known)}" if known else "none was saved yet"
        raise OptionError(f"no baseline {name!r}: {there}; make one with --save") from None
    except OSError as error:
        raise OptionError(f"the baseline {path} can't be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise OptionError(f"the baseline {path} is damaged; --save it anew") from None


def compare(before: Iterable[Result], after: Iterable[Result]) -> list[Comparison]:
    """Each result of `after` beside its fellow. Raises OptionError when one has none."""
    known = {_key(result): result for result in before}
    found: list[Comparison] = []
    for result in after:
        if _key(result) not in known:
            has = "; ".join(f"{model}, {test}, {t} threads" for model, test, t in known)
            raise OptionError(
                f"the baseline has no {result.test} of {result.model} by {result.threads} threads; "
                f"it has {has}"
            )
        found.append(_compare(known[_key(result)], result))
    return found


def _key(result: Result) -> tuple[str, str, int]:
    return result.model, result.test, result.threads


def _compare(before: Result, after: Result) -> Comparison:
    noise = max(LEAST, SDS * math.hypot(_relative_sd(before), _relative_sd(after)))
    change = after.tokens_per_s / before.tokens_per_s - 1
    of_fraction = after.fraction_of_limit / before.fraction_of_limit - 1
    verdict: Literal["slower", "faster", "same"] = "same"
    if max(change, of_fraction) < -noise:
        verdict = "slower"
    elif min(change, of_fraction) > noise:
        verdict = "faster"
    return Comparison(
        model=after.model,
        test=after.test,
        threads=after.threads,
        before=before.tokens_per_s,
        after=after.tokens_per_s,
        change=round(change, 4),
        change_of_fraction=round(of_fraction, 4),
        noise=round(noise, 4),
        verdict=verdict,
    )


def _relative_sd(result: Result) -> float:
    return result.tokens_per_s_sd / result.tokens_per_s
