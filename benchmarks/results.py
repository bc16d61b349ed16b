"""Benchmark rows on disk: one CSV file that is only ever appended to, and the table that is printed."""

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

DEFAULT = Path(__file__).resolve().parent / "results.csv"


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
    """Add rows of equal keys at the end of ``path``; a new file gets the keys as header.

    Raises ValueError where the file has another header: it is never rewritten.
    """
    if not rows:
        return
    names = list(rows[0])
    with open(path, "a+", newline="") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        header = next(csv.reader(file), None)
        if header not in (None, names):
            raise ValueError(f"{path} has other columns than these rows: rows are only added, so name another file.")
        writer = csv.DictWriter(file, names)
        if header is None:
            writer.writeheader()
        writer.writerows(rows)


def table(rows: Iterable[Sequence[str]]) -> str:
    """Rows of cells as aligned text; the first row is the header."""
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
