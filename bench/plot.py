#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/figures from bench/results: cost against depth and positions, share of copy, and memory. Needs matplotlib."""
import argparse
import math
import pathlib

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from results import failures, load

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Series in the order of legends: prefix of names, label, colour, marker.
SERIES = (
    ("", "mhar", "#0b5fb4", "o"),
    ("peer/paper/", "published algorithm (Triton)", "#d1661f", "s"),
    ("peer/compile/", "torch.compile", "#4c8c4a", "^"),
    ("peer/liger/", "Liger Kernel, one head", "#8b5cb5", "v"),
    ("peer/fla/", "flash-linear-attention, one head", "#c2498b", "P"),
    ("peer/einsum/", "PyTorch eager", "#8a8a8a", "D"),
)
DEPTHS = (25, 49, 97, 193)
# At S = 49, d = 1024, H = 8.
POSITIONS = {256: "chain/S49-P256", 1024: "chain/350M", 4096: "chain/S49", 16384: "chain/S49-P16384"}
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "mhar", "font.family": "sans-serif", "font.size": 9, "axes.spines.top": False,
         "axes.spines.right": False, "axes.grid": True, "grid.color": "#e4e4e4", "axes.axisbelow": True, "legend.frameon": False}


def curves(entries, failed, names, xlabel, title, guides=()):
    """Time against the keys of `names`, {x: name}, both axes logarithmic; guides are (prefix, x -> relative cost, label)."""
    figure, axes = pyplot.subplots(figsize=(5.2, 3.8), layout="constrained")
    measured = [x for x, name in names.items() if any(prefix + name in entries for prefix, *_ in SERIES)]
    for prefix, label, colour, marker in SERIES:
        points = [(x, entries[prefix + names[x]].time * 1e-3) for x in measured if prefix + names[x] in entries]
        if not points:
            continue
        if any("memory" in failed.get(prefix + names[x], "") for x in measured):
            axes.annotate("no memory for more", points[-1], xytext=(5, -12), textcoords="offset points", color=colour)
        axes.plot(*zip(*points), color=colour, marker=marker, markersize=5, linewidth=2 if prefix == "" else 1.4, label=label)
        for guided, cost, text in guides:
            if guided == prefix:
                scale = points[0][1] / cost(points[0][0])
                axes.plot(measured, [scale * cost(x) for x in measured], color=colour, linewidth=0.9, linestyle=":")
                axes.annotate(text, (measured[-1], scale * cost(measured[-1])), xytext=(4, -3), textcoords="offset points",
                              color=colour)
    axes.set(xscale="log", yscale="log", xlabel=xlabel, ylabel="forward + backward, ms", title=title)
    axes.set_xticks(measured, [str(x) for x in measured], minor=False)
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def depth(entries, failed):
    return curves(entries, failed, {s: f"chain/S{s}" for s in DEPTHS}, "routing calls of a pass, S",
                  "All routing of a pass, P = 4096, d = 1024, H = 8",
                  (("", lambda s: s * math.log2(s), "S log S"), ("peer/paper/", lambda s: s * s, "S²")))


def positions(entries, failed):
    return curves(entries, failed, POSITIONS, "positions, P", "All routing of a pass, S = 49, d = 1024, H = 8")


def bars(entries, names, value, axes, width=0.8):
    """One group per name, one bar per series that has it."""
    present = [s for s in SERIES if any(s[0] + name in entries for name in names)]
    step = width / len(present)
    for i, (prefix, label, colour, _) in enumerate(present):
        heights = [value(entries[prefix + name]) if prefix + name in entries else None for name in names]
        at = [x + (i - (len(present) - 1) / 2) * step for x in range(len(names))]
        shown = [(x, height) for x, height in zip(at, heights) if height is not None]
        axes.bar(*zip(*shown), step * 0.92, color=colour, label=label)
    axes.grid(axis="x", visible=False)


def copy_share(entries, _):
    """Bytes of one call over time: the same bytes for all, so that bars compare times."""
    names = [name for name in entries if name.startswith("call/")]
    figure, axes = pyplot.subplots(figsize=(7.6, 3.4), layout="constrained")
    copy = entries["copy"]
    rate = copy.counters["bytes"] / copy.time
    bytes_of = {name: entries[name].counters["bytes"] for name in names}
    times = {id(e): bytes_of[name] for prefix, *_ in SERIES for name in names if (e := entries.get(prefix + name))}
    bars(entries, names, lambda entry: times[id(entry)] / entry.time / rate, axes)
    axes.set_xticks(range(len(names)), [_call_label(name) for name in names], fontsize=7.5)
    axes.set(ylim=(0, 1.02), ylabel="share of copy bandwidth", title="One call: bytes it must move over time, as a share of a copy")
    axes.legend(loc="upper right", ncols=2, fontsize=7.5)
    return figure


def _call_label(name):
    _, direction, shape = name.split("/")
    n, d, h, p = shape.split("-")
    return f"{direction}\n{n} {h}\n{d}\n{p}"


def memory(entries, _):
    names = ["chain/100M", "chain/350M", "chain/1B", "chain/1B-4k"]
    figure, axes = pyplot.subplots(figsize=(5.2, 3.4), layout="constrained")
    bars(entries, names, lambda entry: entry.counters["peak_bytes"] / 2**20, axes)
    axes.set_xticks(range(len(names)), [name.split("/")[1] for name in names])
    axes.set(yscale="log", ylabel="MiB", title="Peak memory beyond rows, outputs and row gradients")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.legend(loc="upper left", fontsize=8)
    axes.set_ylim(top=axes.get_ylim()[1] * 6)
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="*", help="result files, by default those of the H200", default=[
        str(ROOT / "bench" / "results" / f"{name}.json") for name in ("h200_peers", "h200")])
    parser.add_argument("--out", default=str(ROOT / "docs" / "figures"))
    parser.add_argument("--format", default="svg", choices=("svg", "png"))
    options = parser.parse_args()
    entries, failed = {}, {}
    for path in options.results:
        entries |= load(path)
        failed |= failures(path)
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    with pyplot.rc_context(STYLE):
        for draw in (depth, positions, copy_share, memory):
            figure = draw(entries, failed)
            metadata = {"Date": None} if options.format == "svg" else None
            figure.savefig(out / f"{draw.__name__.replace('_', '-')}.{options.format}", dpi=160, metadata=metadata)
            pyplot.close(figure)


if __name__ == "__main__":
    main()
