"""What measuring found to be best on this machine: a small file of the cache, one for each machine.

A file counts only for the very machine, limits and version that it was measured with. One that is
foreign, damaged or absurd is as good as none.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from satchel.base.errors import CacheError
from satchel.base.kept import keep_json
from satchel.base.version import VERSION
from satchel.machine.machine import Machine
from satchel.machine.tiles import DEFAULT, Tiles

SCHEMA = 2


@dataclass(frozen=True)
class Trial:
    """The median speed of one number of threads."""

    threads: int
    prompt_tokens_per_s: float
    generated_tokens_per_s: float


@dataclass(frozen=True)
class TileTrial:
    """How fast the kernels were that a choice is about, as a multiple of what they were with the
    choices before it.
    """

    choice: str  # a field of Tiles
    value: int
    speed: float
    chosen: bool


@dataclass(frozen=True)
class Tuned:
    """What was chosen, and the trials that it was chosen from."""

    threads: int
    model: str  # what was run
    busy: bool  # other programs took much of the processors meanwhile: not to be kept
    trials: tuple[Trial, ...]
    target: str = ""  # what the tiles were tried on; they are for no other
    tiles: Tiles = DEFAULT
    tile_trials: tuple[TileTrial, ...] = ()


def facts(machine: Machine) -> dict[str, Any]:
    """What the best choice may depend on, for JSON. Memory in GiB: systems reserve more or less."""
    return {
        "version": VERSION,
        "isa": machine.isa,
        "system": machine.system,
        "name": machine.name,
        "cores": [[list(core.cpus), core.capacity, core.node] for core in machine.cores],
        "allowed": sorted(machine.allowed),
        "quota": machine.quota,
        "caches": [[cache.level, cache.bytes, cache.n_cpus] for cache in machine.caches],
        "memory_gib": round(machine.memory_bytes / 2**30),
    }


def tuned_path(folder: Path, machine: Machine) -> Path:
    """Where the file of a machine lies in the cache directory."""
    digest = hashlib.sha256(json.dumps(facts(machine)).encode()).hexdigest()
    return folder / "tuned" / f"{digest[:16]}.json"


def read_tuned(folder: Path, machine: Machine) -> Tuned | None:
    """What was measured on this machine; None when nothing that makes sense is there."""
    try:
        content: Any = json.loads(tuned_path(folder, machine).read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA or content["machine"] != facts(machine):
            return None
        trials = tuple(Trial(**trial) for trial in content["trials"])
        tile_trials = tuple(TileTrial(**trial) for trial in content["tile_trials"])
        first = (content["threads"], content["model"], content["busy"], trials)
        tuned = Tuned(*first, content["target"], Tiles(**content["tiles"]), tile_trials)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    is_sane = type(tuned.threads) is int and 1 <= tuned.threads <= max(1, machine.n_cpus)
    return tuned if is_sane and tuned.tiles.are_sane else None


def keep_tuned(folder: Path, machine: Machine, tuned: Tuned) -> Path:
    """Keep it, in the place of an older one. Raises CacheError."""
    path = tuned_path(folder, machine)
    content = {"schema": SCHEMA, "machine": facts(machine), **asdict(tuned)}
    keep_json(path, content)
    return path


def forget_tuned(folder: Path, machine: Machine) -> bool:
    """Delete what was kept for this machine; whether there was any. Raises CacheError."""
    path = tuned_path(folder, machine)
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise CacheError(f"{path} can't be deleted: {error.strerror or error}") from None
    return True


def tiles_of(tuned: Tuned | None, target: str) -> Tiles:
    """What was measured to be best for a target, or the default where nothing was."""
    return tuned.tiles if tuned and tuned.target == target else DEFAULT


def best_threads(folder: Path, machine: Machine) -> int:
    """The number that was measured to be best, or the machine's default where none was."""
    tuned = read_tuned(folder, machine)
    return tuned.threads if tuned else machine.default_threads
