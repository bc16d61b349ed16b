"""Wrong kernels, for scenarios 2 and 7, that the checker must catch. Each updates the caches of a call in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from scatter_pa_kv_cache.golden.slots import bits
from scatter_pa_kv_cache.reference import run_golden


def _block_size(call: dict[str, Any]) -> int:
    return call["key_cache"].shape[2 if call["scatter_mode"] == "NHSD" else 1]


def _moved(call: dict[str, Any], distance: int) -> None:
    capacity = call["key_cache"].shape[0] * _block_size(call)
    run_golden(call | {"slot_mapping": (call["slot_mapping"] + distance) % capacity})


def lost_tail(call: dict[str, Any]) -> None:
    slots = call["slot_mapping"].clone()
    slots[-1] = -1
    run_golden(call | {"slot_mapping": slots})


def shifted_slot(call: dict[str, Any]) -> None:
    _moved(call, 1)


def off_by_one_block(call: dict[str, Any]) -> None:
    _moved(call, _block_size(call))


def swapped_key_and_value(call: dict[str, Any]) -> None:
    run_golden(call | {"key": call["value"], "value": call["key"]})


def wrong_head_order(call: dict[str, Any]) -> None:
    run_golden(call | {"key": call["key"].flip(1), "value": call["value"].flip(1)})


def touched_neighbour(call: dict[str, Any]) -> None:
    """All is right but one row, which no token names."""
    run_golden(call)
    slots = call["slot_mapping"].tolist()
    free = next(slot for slot in range(10**6) if slot not in slots)
    block, place = divmod(free, _block_size(call))
    row = (block, 0, place) if call["scatter_mode"] == "NHSD" else (block, place, 0)
    cache = bits(call["key_cache"])
    cache[row] = torch.bitwise_not(cache[row])


FAULTS: tuple[Callable[[dict[str, Any]], None], ...] = (
    lost_tail,
    shifted_slot,
    off_by_one_block,
    swapped_key_and_value,
    wrong_head_order,
    touched_neighbour,
)
