"""The kernels of this project in PyPTO's cost model, Norm beside the field's kernel. Nothing here was measured.

Four tables: Norm against the field's kernel; the kernel of every other scenario; the tiles of PA_NZ and NHSD; and what
``assemble`` would gain over the scatter of a run. No ratio is printed for a kernel that is wrong.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import assembled, beside_field, results, scenarios, tiles
from .cost_model import CYCLES_PER_US, LABEL, Cost

SECTIONS = {
    "field": (
        "Norm, K and V [T, 2, kv_dim / 2] bfloat16. field's: max(its E2E, floor); ratio: field's / ours;\n"
        "ratio at n: with n cycles for each row store. S: key and value are separate tasks, M: merged."
    ),
    "scenarios": (
        "The other kernels, on their performance configs: found / needed. The field has none of them in PyPTO, so no\n"
        "ratio. Tasks of a chain, and edges, are tiles of one Rope window that add to one sum."
    ),
    "tiles": (
        "Tiles of PA_NZ and NHSD, K and V [T, 2, 256] bfloat16; at n: with n cycles for each row store.\n"
        "The model does not see the bytes of a store, nor rows of a tile beyond the 256th."
    ),
    "assemble": "Alibi, its runs scattered as the card has it, or assembled: one store a tile and no index.",
}
TOKENS = (1, 32, 256, 2633, 7902, 16384)
KV_DIM = 512
OTHER_KV_DIMS = (128, 576, 1024, 4096, 8192, 16384)
OTHER_TOKENS = (1, 256, 2633)
SWIMLANE = results.FOLDER / "swimlane.csv"
SWIMLANE_CALL = (KV_DIM, 2633)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables. Returns 1 where a kernel is wrong and its ratio therefore refused."""
    options = _parser().parse_args(argv)
    print(f"{LABEL}: microseconds on an Ascend 910B2; HBM floor: 1.6 TB/s")
    records: list[Mapping[str, object]] = []
    wrong: list[str] = []
    for section in options.only:
        columns, rows = _rows(section, options)
        print(f"\n{SECTIONS[section]}\n{results.table([columns, *(row.cells() for row in rows)])}", flush=True)
        wrong += [f"{row.name}: {row.verdict}" for row in rows if row.verdict != "PASS"]
        records += [row.record() for row in rows]
    for reason in wrong:
        print(f"no figure for {reason}", file=sys.stderr)
    if options.csv or options.save:
        results.append(options.csv or results.DEFAULT, records)
    return 1 if wrong else 0


def _rows(section: str, options: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
    """The columns of a table, and its rows."""
    if section == "scenarios":
        return scenarios.COLUMNS, scenarios.bench()
    if section == "tiles":
        return tiles.COLUMNS, tiles.bench()
    if section == "assemble":
        return assembled.COLUMNS, assembled.bench()
    rows = beside_field.bench(_calls(options), options.kernel)
    shown = [row for row in rows if (row.kv_dim, row.tokens) == SWIMLANE_CALL and row.verdict == "PASS"]
    if options.save and shown:
        write_swimlane(SWIMLANE, {"ours": shown[0].cost, "field's": shown[0].field}, shown[0].floor_us)
    return beside_field.COLUMNS, rows


def write_swimlane(path: Path, costs: Mapping[str, Cost], floor_us: float) -> None:
    """The tasks of some kernels on the same call, in microseconds from the start of each one's first task."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("kernel", "kv_dim", "tokens", "floor_us", "core", "start_us", "end_us"))
        for name, cost in costs.items():
            tasks = [task for task in cost.timeline if not task.hub]
            first = min(task.start for task in tasks)
            for task in sorted(tasks, key=lambda task: (task.start, task.core)):
                times = ((time - first) / CYCLES_PER_US for time in (task.start, task.end))
                writer.writerow(
                    (name, *SWIMLANE_CALL, f"{floor_us:.3f}", task.core, *(f"{time:.4f}" for time in times))
                )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scatter_pa_kv_cache bench model", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=tuple(SECTIONS), help="these tables alone")
    parser.add_argument("--tokens", type=_numbers, help="field: numbers of tokens, with commas")
    parser.add_argument("--kv-dim", type=_numbers, help="field: elements of a token's row, with commas")
    parser.add_argument("--kernel", help='field: "module:function" of another kernel factory with the same parameters')
    parser.add_argument("--save", action="store_true", help=f"append to {results.DEFAULT.name}, write {SWIMLANE.name}")
    parser.add_argument("--csv", type=Path, help="append the rows to this file")
    return parser


def _calls(options: argparse.Namespace) -> list[tuple[int, int]]:
    """(kv_dim, tokens) of the first table."""
    if options.tokens or options.kv_dim:
        kv_dims = options.kv_dim or (KV_DIM,)
        return [(kv_dim, tokens) for kv_dim in kv_dims for tokens in options.tokens or TOKENS]
    return [
        *((KV_DIM, tokens) for tokens in TOKENS),
        *((kv_dim, tokens) for kv_dim in OTHER_KV_DIMS for tokens in OTHER_TOKENS),
    ]


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(int(part) for part in text.split(","))
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: each number must be at least 1.")
    return numbers


if __name__ == "__main__":
    sys.exit(main())
