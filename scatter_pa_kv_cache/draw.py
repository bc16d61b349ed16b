"""The command ``draw``: pictures of where each scenario writes, and of a call's schedule."""

from __future__ import annotations

import argparse
import io
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from .scenarios import SCENARIOS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def main(options: argparse.Namespace) -> int:
    """Draw into the folder ``options.to``, which is made if need be. Returns 0, or 2 where nothing can be drawn."""
    if options.what == "swimlane":
        from .benchmarks import plot  # draws it beside the ratios, from the CSV of the cost model

        return plot.main(["--to", options.to])
    if find_spec("matplotlib") is None:
        print("draw: matplotlib is missing; pip install 'scatter-pa-kv-cache[bench]' brings it", file=sys.stderr)
        return 2
    numbers = [options.scenario] if options.scenario else [row.number for row in SCENARIOS]
    folder = Path(options.to)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number in numbers:
            for path in draw_layout(number, folder):
                print(path)
    except OSError as error:
        print(f"draw: {error}; --to must name a folder that can be written", file=sys.stderr)
        return 2
    return 0


def draw_layout(number: int, folder: Path) -> tuple[Path, Path]:
    """Draw a small call of scenario ``number`` (1 to 7) as ``layout_<number>.png`` and ``.svg``; returns the two paths.

    Both have the same bytes in every run with the same matplotlib.
    """
    from matplotlib import rc_context, style

    from .layout_pictures import Picture

    paths = folder / f"layout_{number}.png", folder / f"layout_{number}.svg"
    with style.context("default"), rc_context({"svg.hashsalt": "layout"}):
        figure = Picture(number).figure
        _save_png(figure, paths[0])
        figure.savefig(paths[1], metadata={"Date": None})
    return paths


def _save_png(figure: Figure, path: Path) -> None:
    """In 256 colours: half the bytes, no visible difference."""
    from PIL import Image

    memory = io.BytesIO()
    figure.savefig(memory, format="png")
    Image.open(memory).convert("RGB").quantize().save(path, optimize=True)
