"""Benchmark rows on disk: one CSV file that is only ever appended to, and the tables that are printed."""

from __future__ import annotations

import csv
import fcntl
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .. import __version__

FOLDER = Path(__file__).resolve().parent
DEFAULT = FOLDER / "results.csv"
# one file for all benchmarks: a row leaves the columns of the others empty
COLUMNS = (
    *("time", "device", "host", "version", "pypto", "torch", "bench", "label", "kernel", "config"),
    *("kv_dim", "tokens", "blocks", "tile", "merged", "verdict"),
    *("e2e_us", "e2e_with_prologue_us", "floor_us", "bounded_us", "field_e2e_us", "field_with_prologue_us"),
    *("ratio_0", "ratio_12", "ratio_60", "ratio_170", "repriced_12_us", "repriced_60_us", "repriced_170_us"),
    *("tasks", "chain_depth", "batches", "edges", "scatters", "scatters_expected", "rows_on_busiest_core"),
    *("source_loads", "source_loads_expected", "rows_read", "rows_written"),
    *("first_ns", "best_ns", "median_ns", "operations", "views"),
    *("wall_s", "start_s", "verdicts_s", "values_s", "transfer_s", "read_back_s", "rest_s", "launches"),
    *("host_mib", "worker_mib", "best_ms", "median_ms", "gb_per_s", "roof_percent"),
)


def environment(device: str) -> dict[str, str]:
    """What a figure depends on besides the configuration: device, host, versions, time."""
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": device,
        "host": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "version": __version__,
        "pypto": _version("pypto"),
        "torch": _version("torch"),
    }


def append(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Add rows, whose keys are of COLUMNS, at the end of ``path``; a new file gets COLUMNS as header.

    Raises ValueError for another key, or where the file has another header: it is never rewritten.
    """
    unknown = {name for row in rows for name in row} - set(COLUMNS)
    if unknown:
        raise ValueError(f"rows have the columns {', '.join(sorted(unknown))}, which results.COLUMNS does not name.")
    if not rows:
        return
    with open(path, "a+", newline="") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        header = next(csv.reader(file), None)
        if header not in (None, list(COLUMNS)):
            raise ValueError(f"{path} has other columns than these rows: rows are only added, so name another file.")
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        if header is None:
            writer.writeheader()
        writer.writerows(rows)


def newest(path: Path, bench: str, *key: str) -> list[dict[str, str]]:
    """The last row of each value of the columns ``key`` among the rows of ``bench``, in the order of the file."""
    with open(path, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["bench"] == bench]
    return list({tuple(row[name] for name in key): row for row in rows}.values())


def table(rows: Iterable[Sequence[str]]) -> str:
    """Rows of cells as aligned text; the first row is the header. Text stands left, numbers right."""
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numeric = [any(cell[:1].isdigit() for cell in column[1:]) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
