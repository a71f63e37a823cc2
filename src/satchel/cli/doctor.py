"""`satchel doctor`: what this machine is and can do, and what Satchel keeps on it."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import Any

from satchel.base import log
from satchel.base.options import options
from satchel.cli.output import as_json
from satchel.files.caches import cache_sizes, clear_caches
from satchel.machine.tiles import DEFAULT


def doctor(args: argparse.Namespace) -> int:
    """Prints the machine, its measured limits and the caches; or clears these."""
    if args.clear_cache:
        freed = clear_caches()
        log.note(f"compiled kernels and packed weights are deleted; {log.size(freed)} are free")
        return 0
    found = facts(args.threads)
    print(as_json(found) if args.json else text(found))
    return 0


def facts(threads: int | None) -> dict[str, Any]:
    """All that is shown, for JSON; measuring takes about a second."""
    from satchel.compiler.model import host_target
    from satchel.machine import this_machine
    from satchel.machine.tuned import best_threads, read_tuned
    from satchel.measure.limits import measure_limits

    machine, target = this_machine(), host_target(options().target)
    tuned = read_tuned(options().cache_dir, machine)
    limits = measure_limits(threads or best_threads(options().cache_dir, machine))
    return {
        "python": sys.version.split()[0],
        "machine": {
            "name": machine.name,
            "isa": machine.isa,
            "system": machine.system,
            "cpu": machine.cpu,
            "features_found": sorted(machine.features),
            "cores": len(machine.cores),
            "logical_cpus": machine.n_cpus,
            "allowed_cpus": len(machine.allowed),
            "cpu_quota": machine.quota,
            "default_threads": machine.default_threads,
            "cache_bytes": {f"L{c.level}": c.bytes for c in machine.caches},
            "memory_bytes": machine.memory_bytes,
        },
        "tuned": None if tuned is None else asdict(tuned),
        "target": {"name": target.name, "features_used": sorted(target.features)},
        "limits": {
            "threads": limits.threads,
            "read_bytes_per_s": round(limits.read_bytes_per_s),
            "mads_per_s": round(limits.mads_per_s),
        },
        "cache": {"folder": str(options().cache_dir), "bytes": cache_sizes()},
    }


def tiles_text(tiles: dict[str, Any]) -> str:
    """Those that are not as by default."""
    usual = asdict(DEFAULT)
    changed = [f"{name} {value}" for name, value in tiles.items() if value != usual[name]]
    return f"tiles: {', '.join(changed) or 'as by default'}"


def text(found: dict[str, Any]) -> str:
    """All that is shown, for people."""
    machine, target, limits = found["machine"], found["target"], found["limits"]
    tuned = found["tuned"]
    quota = f", {machine['cpu_quota']:g} CPUs of time" if machine["cpu_quota"] else ""
    caches = ", ".join(f"{level} {log.size(n)}" for level, n in machine["cache_bytes"].items())
    sizes = ", ".join(f"{name} {log.size(n)}" for name, n in found["cache"]["bytes"].items())
    rows = {
        "python": found["python"],
        "processor": f"{machine['name']} ({machine['isa']}, LLVM calls it {machine['cpu']})",
        "cores": f"{machine['cores']}, {machine['logical_cpus']} logical, "
        f"{machine['allowed_cpus']} allowed{quota}; {machine['default_threads']} threads at first",
        "tuned": f"threads: {tuned['threads']}, by {tuned['model']}; {tiles_text(tuned['tiles'])}"
        if tuned
        else "not yet",
        "caches": caches,
        "memory": log.size(machine["memory_bytes"]),
        "features found": " ".join(machine["features_found"]),
        "target": target["name"],
        "features used": " ".join(target["features_used"]),
        "reads": f"{log.size(limits['read_bytes_per_s'])}/s with {limits['threads']} threads",
        "multiply-adds": f"{limits['mads_per_s'] / 1e9:.1f} billion/s of 8 bits",
        "kept in": found["cache"]["folder"],
        "sizes": sizes,
    }
    return "\n".join(f"{name:15} {value}" for name, value in rows.items())
