"""Pictures of the benchmark's CSV files and of nothing else: ratio and floor per T, and a swimlane of one call."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from . import results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KV_DIM = "512"
OURS, FIELD, FLOOR = "#1f5fa8", "#c2571a", "#777777"
LABEL = "PyPTO cost model, not measured"
FIRST_VECTOR_CORE = 24  # the cost model counts the cube cores first


def main(argv: Sequence[str] | None = None) -> int:
    """Draw ratio.png and swimlane.png. Returns 2 where a file or matplotlib is missing."""
    parser = argparse.ArgumentParser(prog="python -m scatter_pa_kv_cache bench plot", description=__doc__)
    parser.add_argument("--csv", type=Path, default=results.DEFAULT, help="rows of bench model --save")
    parser.add_argument("--swimlane", type=Path, default=results.FOLDER / "swimlane.csv", help="tasks of one call")
    parser.add_argument("--to", type=Path, default=results.FOLDER, metavar="FOLDER", help="where the PNGs go")
    options = parser.parse_args(argv)
    if find_spec("matplotlib") is None:
        print("bench plot: matplotlib is missing; pip install 'scatter-pa-kv-cache[bench]' brings it", file=sys.stderr)
        return 2
    for path in (options.csv, options.swimlane):
        if not path.exists():
            print(f"bench plot: there is no {path}; bench model --save writes it", file=sys.stderr)
            return 2
    rows = [row for row in results.newest(options.csv, "field", "kv_dim", "tokens") if row["kv_dim"] == KV_DIM]
    proven = sorted((row for row in rows if row["verdict"] == "PASS"), key=lambda row: int(row["tokens"]))
    if not proven:
        print(f"bench plot: {options.csv} has no proven row of kv_dim {KV_DIM}", file=sys.stderr)
        return 2
    with open(options.swimlane, newline="") as file:
        tasks = list(csv.DictReader(file))
    options.to.mkdir(parents=True, exist_ok=True)
    for name, figure in (("ratio.png", ratio_figure(proven)), ("swimlane.png", swimlane_figure(tasks))):
        figure.savefig(options.to / name, dpi=100)
        print(options.to / name)
    return 0


def ratio_figure(rows: Sequence[dict[str, str]]) -> Figure:
    """Times and floor, and the ratios, over the numbers of tokens of ``rows``, which are of one kv_dim."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.3), layout="constrained")
    times, ratios = figure.subplots(1, 2, width_ratios=(1.15, 1))
    tokens = [int(row["tokens"]) for row in rows]
    for column, colour, label in (("field_e2e_us", FIELD, "the field's kernel"), ("e2e_us", OURS, "ours")):
        times.plot(tokens, [float(row[column]) for row in rows], color=colour, marker="o", markersize=4, label=label)
    floors = [float(row["floor_us"]) for row in rows]
    times.plot(tokens, floors, color=FLOOR, linestyle="--", label="HBM floor, 1.6 TB/s")
    times.set(xscale="log", yscale="log", xlabel="tokens T", ylabel="E2E, µs", ylim=(1, 120))
    times.set_xticks(tokens, [str(number) for number in tokens], rotation=30)
    times.minorticks_off()
    times.set_yticks([1, 3, 10, 30, 100], ["1", "3", "10", "30", "100"])
    times.legend(frameon=False, loc="upper left")
    _grid(times)

    for shift, column, colour, label in (
        (-0.2, "ratio_0", OURS, "as the model charges"),
        (0.2, "ratio_60", "#8fb4dc", "60 cycles more for each row store"),
    ):
        heights = [float(row[column]) for row in rows]
        places = [place + shift for place in range(len(rows))]
        ratios.bar(places, heights, width=0.38, color=colour, label=label)
        for place, height in zip(places, heights, strict=True):
            ratios.text(place, height + 0.04, f"{height:.2f}", ha="center", va="bottom", fontsize=7)
    ratios.axhline(1, color=FIELD, linewidth=1)
    ratios.set_xticks(range(len(rows)), [str(number) for number in tokens])
    ratios.set(xlabel="tokens T", ylabel="times faster, both ≥ floor", ylim=(0, 4.2))
    ratios.legend(frameon=False, loc="upper left", fontsize=9)
    _grid(ratios)
    figure.suptitle(f"K and V [T, 2, 256] bfloat16, Norm: {LABEL}", fontsize=11)
    return figure


def swimlane_figure(tasks: Sequence[dict[str, str]]) -> Figure:
    """Tasks per vector core over time, the kernels below each other on one axis of time."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(task["kernel"] for task in tasks))
    floor = float(tasks[0]["floor_us"])
    figure = Figure(figsize=(9, 5), layout="constrained")
    lanes = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
    for axes, name, colour in zip(lanes, names, (OURS, FIELD), strict=False):
        own = [task for task in tasks if task["kernel"] == name]
        starts = [float(task["start_us"]) for task in own]
        lengths = [float(task["end_us"]) - start for task, start in zip(own, starts, strict=True)]
        cores = [int(task["core"]) - FIRST_VECTOR_CORE for task in own]
        axes.barh(cores, lengths, left=starts, height=0.8, color=colour, edgecolor="white", linewidth=0.3)
        end = max(float(task["end_us"]) for task in own)
        axes.set(ylabel="vector core", ylim=(-1, 48), yticks=(0, 12, 24, 36, 47))
        axes.set_title(f"{name}: {len(own)} tasks, {end:.2f} µs", loc="left", fontsize=10)
        axes.axvline(floor, color=FLOOR, linestyle="--", label=f"HBM floor, {floor:.2f} µs")
        _grid(axes)
    lanes[0].legend(frameon=False, loc="upper right")
    lanes[-1].set_xlabel("µs from the start of the first task")
    figure.suptitle(f"One call, T = {tasks[0]['tokens']}, kv_dim {tasks[0]['kv_dim']}: {LABEL}", fontsize=11)
    return figure


def _grid(axes: Axes) -> None:
    axes.grid(alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    sys.exit(main())
