"""Draws a roofline from what `satchel bench MODEL --profile --json` prints:

    satchel bench MODEL --profile --json > profile.jsonl
    python bench/roofline.py profile.jsonl -o docs/roofline.svg

Each kernel stands at the multiply-adds it does for a byte, and at how many it does a second; under
the roofs that the same run measured: bytes from memory, multiply-adds of codes and of floats. The
larger its mark, the more of the step it takes. Needs matplotlib: pip install 'satchel[plot]'.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Line = dict[str, Any]
MARKS = ("o", "s", "^", "D", "v", "P")
LEAST_SHARE = 0.01  # of a step: kernels that take less are left out


def read(paths: Iterable[Path]) -> list[Line]:
    """The JSON lines of all files. Ends the program for what is no profile."""
    try:
        found = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    except (OSError, ValueError) as error:
        sys.exit(f"roofline: error: {error}; give what satchel bench --profile --json printed")
    if not any(line.get("kind") == "limits" for line in found):
        sys.exit("roofline: error: no limits among the lines; profile with satchel bench --profile")
    return found


def roofs(lines: list[Line]) -> Line:
    """The best of each limit, if several runs measured them."""
    limits = [line for line in lines if line["kind"] == "limits"]
    names = ("memory_bytes_per_s", "code_mads_per_s", "float_mads_per_s")
    return {name: max(line[name] for line in limits) / 1e9 for name in names}


def points(lines: list[Line]) -> dict[str, list[Line]]:
    """The kernels that multiply, by model and step."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        if line["kind"] == "kernel" and line["mads"] and line["share"] >= LEAST_SHARE:
            series = f"{Path(line['model']).stem}, {line['test']}"
            found.setdefault(series, []).append(line)
    return found


def draw(lines: list[Line], out: Path) -> None:
    """Writes the picture; its format is that of the file's suffix."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "satchel"  # the same lines draw the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    best = roofs(lines)
    ends = (0.25, 4096)
    for name, roof in (("codes", "code_mads_per_s"), ("floats", "float_mads_per_s")):
        top = best[roof]
        slope = best["memory_bytes_per_s"]
        axes.plot([ends[0], top / slope, ends[1]], [ends[0] * slope, top, top], "k-", lw=1)
        axes.annotate(f"{top:.0f} G multiply-adds/s of {name}", (ends[1], top), (-4, 4),
                      textcoords="offset points", ha="right", fontsize=8)  # fmt: skip
    axes.annotate(f"{best['memory_bytes_per_s']:.1f} GB/s", (0.5, best["memory_bytes_per_s"] / 2),
                  (4, -14), textcoords="offset points", fontsize=8)  # fmt: skip
    for mark, (series, kernels) in zip(MARKS * 9, points(lines).items(), strict=False):
        axes.scatter(
            [k["mads"] / k["bytes"] for k in kernels],
            [k["gmads_per_s"] for k in kernels],
            [400 * k["share"] + 12 for k in kernels],
            marker=mark,
            alpha=0.6,
            label=series,
        )
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=(4, 2 * best["code_mads_per_s"]))
    axes.set(xlabel="multiply-adds per byte read or written", ylabel="G multiply-adds per second")
    axes.grid(which="both", lw=0.3, alpha=0.5)
    legend = axes.legend(loc="lower right", fontsize=8)
    for handle in legend.legend_handles:
        handle.set_sizes([40])
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


def main() -> None:
    """Draws the lines of the files named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("profiles", nargs="+", type=Path, help="files of JSON lines")
    parser.add_argument("-o", dest="out", type=Path, default=Path("roofline.svg"))
    args = parser.parse_args()
    lines = read(args.profiles)
    try:
        draw(lines, args.out)
    except ImportError:
        sys.exit("roofline: error: matplotlib is missing; pip install 'satchel[plot]'")


if __name__ == "__main__":
    main()
