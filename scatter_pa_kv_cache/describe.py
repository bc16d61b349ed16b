"""The command ``check``: what would become of a call, told from the shapes and dtypes of its tensors alone."""

from __future__ import annotations

import argparse
import json
import sys
from math import prod
from pathlib import Path
from typing import Any

import torch

from .arguments import normalise
from .errors import ScatterPaKvCacheError
from .kernels.tiling import MERGED
from .planning import template
from .rules import choose
from .scenarios import TENSORS

_NUMBERS = ("strides", "offsets")
_WORDS = ("cache_mode", "scatter_mode", "soc", "key_dtype", "value_dtype")
_DEFAULT_DTYPES = dict.fromkeys(TENSORS, "int32") | dict.fromkeys(
    ("key", "key_cache", "value", "value_cache"), "bfloat16"
)


def main(options: argparse.Namespace) -> int:
    """Print the answer. Returns 0 for an accepted call, 1 for a refused one, 2 for a description that says nothing."""
    try:
        call = _read(options)
    except (OSError, ValueError) as error:
        print(f"check: {error}", file=sys.stderr)
        return 2
    try:
        print("\n".join(describe(call)))
    except ScatterPaKvCacheError as error:
        print(f"refused, code {error.code}, rule {error.rule}: {error}")
        return 1
    return 0


def describe(call: dict[str, Any]) -> list[str]:
    """Lines about an accepted call, whose tensors are on the meta device. Raises the error of a refused one."""
    arguments = normalise(**call)
    choice = choose(arguments.spec)
    if choice is None:
        return ["accepted: the call is empty, there is nothing to write"]
    plan = template(arguments, choice)
    parameters = dict(plan.kernel.arguments)
    lines = [
        f"accepted: scenario {choice.scenario.number}, {choice.scenario.title}; scatter mode {choice.scatter_mode}",
        f"kernel: {choice.module}, {parameters['tile']} tokens a tile, index {parameters['index_dtype']}, "
        + ("key and value in one task" if parameters["nbuffer"] == MERGED else "a task for each cache"),
    ]
    for side in plan.sides:
        layout = side.layout
        lines.append(
            f"{side.name}_cache: rows of {layout.row} {side.side.dtype}, {layout.groups} a slot, "
            f"{layout.num_rows} from the first to the last"
        )
    return lines


def _read(options: argparse.Namespace) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if options.file:
        text = sys.stdin.read() if options.file == "-" else Path(options.file).read_text()
        given = json.loads(text)
        if not isinstance(given, dict):
            raise ValueError("the JSON must be an object with the call's arguments by name")
    names = (*TENSORS, *_NUMBERS, *_WORDS)
    unknown = [name for name in given if name not in names]
    if unknown:
        raise ValueError(f"there is no argument {', '.join(unknown)}; there are {', '.join(names)}")
    given |= {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if not given:
        raise ValueError("no call is described; --help shows how")
    call: dict[str, Any] = dict.fromkeys(("key", "key_cache", "slot_mapping"))
    for name, value in given.items():
        if name in TENSORS:
            call[name] = None if value is None else _tensor(name, value)
        elif name in _NUMBERS:
            call[name] = tuple(_integers(name, value))
        else:
            call[name] = value
    return call


def _tensor(name: str, text: Any) -> torch.Tensor:
    shape, _, dtype = str(text).partition(":")
    dtype = dtype or _DEFAULT_DTYPES[name]
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise ValueError(f"{name} has dtype {dtype}, which torch does not know")
    sizes = _integers(name, shape) if shape else []
    # Nct reads on past the shape of its source: as far as one could wish
    room = 2 * prod(sizes) + 2**40 if name in ("key", "value") and sizes else prod(sizes)
    return torch.empty(room, dtype=kind, device="meta")[: prod(sizes)].view(sizes)


def _integers(name: str, text: Any) -> list[int]:
    parts = text if isinstance(text, list) else str(text).split(",")
    try:
        numbers = [int(part) for part in parts]
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {text!r}; it must be integers with commas between") from None
    if min(numbers, default=0) < 0 and name not in _NUMBERS:
        raise ValueError(f"{name} has shape {numbers}; no size may be negative")
    return numbers
