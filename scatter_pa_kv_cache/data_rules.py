"""Rules V: what the index tensors hold (sections 3 and 6 of the operator's specification). Reads device data.

V1 and V2 are for slots of tokens (scenarios 1, 2, 6, 7); V3 to V9 for the tasks, one per batch and head, of the
compressed scenarios (3, 4, 5). A task with a negative slot is skipped whole, so its window and offset are free.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from .arguments import Arguments
from .errors import DataError, ScatterPaKvCacheWarning
from .rule_types import Call, Rule, enforce
from .rules import Choice
from .scenarios import COMPRESSED

_PLAIN = (1, 2, 6, 7)
_REDUCING = ("Rope", "Omni")


@dataclass(frozen=True, slots=True)
class IndexData:
    """The index tensors of a call, int64 on the CPU; the last five are [B*H], in task order, empty when plain.

    ``rows`` counts the cache rows that a task writes, 0 for a skipped one; meaningful once V4 to V6 have passed.
    """

    call: Call
    slots: Tensor  # [T] or [B*H]
    seq_lens: Tensor  # [B]
    lengths: Tensor  # S of each task
    windows: Tensor  # w of each task
    offsets: Tensor  # o of each task, -1 (no compression) where the mode has none
    active: Tensor  # slot >= 0
    rows: Tensor

    @property
    def has_offsets(self) -> bool:
        return self.call.scatter_mode in _REDUCING

    @property
    def windows_bind(self) -> Tensor:
        """Tasks whose window means something: not skipped, and not told by offset -1 to copy everything."""
        return self.active & (self.offsets != -1) if self.has_offsets else self.active


def check_data(args: Arguments, choice: Choice) -> None:
    """Apply the rules V to the index tensors of an accepted call.

    Raises DataError for the first broken rule; V9, documented but neither needed nor enough, is a
    ScatterPaKvCacheWarning. The tensors may be on any device that can be read; this waits for it.
    """
    data = read_index_data(args, choice)
    bound = (rule for rule in DATA_RULES if rule.binds(choice.scenario.number, choice.scatter_mode, args.spec.soc))
    enforce(bound, data)
    if choice.scenario.number in COMPRESSED:
        _warn_of_capacity(data)


def _flat(tensor: Tensor | None) -> Tensor:
    if tensor is None:
        return torch.empty(0, dtype=torch.int64, device="cpu")
    return tensor.detach().to(device="cpu", dtype=torch.int64).flatten()


def read_index_data(args: Arguments, choice: Choice) -> IndexData:
    """The index tensors of an accepted call, on the host."""
    call = Call.of(args.spec)
    slots = _flat(args.slot_mapping)
    none = torch.empty(0, dtype=torch.int64, device="cpu")
    if choice.scenario.number in _PLAIN:
        return IndexData(call, slots, none, none, none, none, slots >= 0, none)
    seq_lens, windows = _flat(args.seq_lens), _flat(args.compress_lens)
    lengths = seq_lens.repeat_interleave(call.heads)
    active = slots >= 0
    if choice.scatter_mode in _REDUCING:
        offsets = _flat(args.compress_seq_offset)
        whole = (offsets == -1) | (windows == 0) | (offsets == lengths)
        rows = torch.where(whole, lengths, lengths - windows + (choice.scatter_mode == "Rope"))
    else:
        offsets, rows = torch.full_like(windows, -1), windows
    return IndexData(call, slots, seq_lens, lengths, windows, offsets, active, torch.where(active, rows, 0))


def _first(mask: Tensor) -> int | None:
    """The first place that a mask marks."""
    places = mask.nonzero()
    return int(places[0]) if len(places) else None


def _task(data: IndexData, task: int) -> str:
    return f"batch {task // data.call.heads}, head {task % data.call.heads}"


def _slot_in_cache(data: IndexData) -> str | None:
    at = _first(data.slots >= data.call.capacity)
    if at is None:
        return None
    return (
        f"slot_mapping[{at}] is {data.slots[at]}; it must be less than {data.call.capacity}, the slots of key_cache "
        "(NB * BS), or negative to skip the token"
    )


def _slots_unique(data: IndexData) -> str | None:
    places = data.active.nonzero().flatten()
    slots, order = data.slots[places].sort(stable=True)
    at = _first(slots[1:] == slots[:-1])
    if at is None:
        return None
    first, second = int(places[order[at]]), int(places[order[at + 1]])
    return (
        f"slot_mapping[{first}] and slot_mapping[{second}] are both {slots[at]}; slots must be unique unless negative"
    )


def _lengths_sum(data: IndexData) -> str | None:
    total = sum(data.seq_lens.tolist())
    if total == data.call.tokens:
        return None
    return f"seq_lens has the sum {total}; it must be key's number of tokens, {data.call.tokens}"


def _lengths_range(data: IndexData) -> str | None:
    at = _first(data.seq_lens < 0)
    if at is not None:
        return f"seq_lens[{at}] is {data.seq_lens[at]}; it must not be negative"
    if data.call.key.rank == 3:
        return None
    padded = data.call.key.shape[1]
    at = _first(data.seq_lens > padded)
    return None if at is None else f"seq_lens[{at}] is {data.seq_lens[at]}; it must be at most key's dim 1, {padded}"


def _window_range(data: IndexData) -> str | None:
    too_long = data.windows > data.lengths
    if data.has_offsets:
        too_long &= (data.lengths > 0) | (data.offsets != 0)  # an empty sequence writes nothing
    at = _first(data.windows_bind & ((data.windows < 0) | too_long))
    if at is None:
        return None
    free = ", or compress_seq_offset must be -1" if data.has_offsets else ""
    return (
        f"compress_lens has {data.windows[at]} for {_task(data, at)}; it must be from 0 to the sequence's length, "
        f"{data.lengths[at]}{free}"
    )


def _offset_range(data: IndexData) -> str | None:
    offsets, windows, lengths = data.offsets, data.windows, data.lengths
    good = (offsets == -1) | (offsets == lengths) | ((offsets >= 0) & (offsets <= lengths - windows))
    at = _first(data.active & ~good)
    if at is None:
        return None
    return (
        f"compress_seq_offset has {offsets[at]} for {_task(data, at)} with window {windows[at]} and length "
        f"{lengths[at]}; it must be -1, the length, or from 0 to length - window"
    )


def _rows_in_cache(data: IndexData) -> str | None:
    at = _first(data.active & (data.slots > data.call.capacity - data.rows))
    if at is None:
        return None
    return (
        f"slot_mapping has {data.slots[at]} for {_task(data, at)}, which writes {data.rows[at]} rows; they must "
        f"end within the {data.call.capacity} slots of key_cache (NB * BS)"
    )


def _rows_disjoint(data: IndexData) -> str | None:
    tasks = (data.rows > 0).nonzero().flatten()
    starts, order = data.slots[tasks].sort(stable=True)
    ends = starts + data.rows[tasks][order]
    at = _first(starts[1:] < ends[:-1])
    if at is None:
        return None
    first, second = int(tasks[order[at]]), int(tasks[order[at + 1]])
    return (
        f"slot_mapping sends {_task(data, first)} to rows {starts[at]}..{ends[at] - 1} and {_task(data, second)} to "
        f"rows {starts[at + 1]}..{ends[at + 1] - 1}; the rows of tasks must be disjoint"
    )


def _warn_of_capacity(data: IndexData) -> None:
    windows = torch.where(data.windows_bind, data.windows, 0)
    dropped = int((data.lengths - windows)[data.active].sum())
    if dropped > data.call.capacity:
        warnings.warn(
            f"compress_lens and seq_lens leave {dropped} tokens outside the windows, more than key_cache's "
            f"{data.call.capacity} slots; the operator's documents ask for at most as many, but nothing breaks [V9]",
            ScatterPaKvCacheWarning,
            stacklevel=3,
        )


DATA_RULES: tuple[Rule[IndexData], ...] = (
    Rule("V1", DataError, "slot < NB * BS", _slot_in_cache, _PLAIN),
    Rule("V2", DataError, "slots that are not negative are unique", _slots_unique, _PLAIN),
    Rule("V3", DataError, "seq_lens sums to T", _lengths_sum, (4, 5)),
    Rule("V4", DataError, "0 <= seq_lens, with a 4-D key at most L", _lengths_range, COMPRESSED),
    Rule(
        "V5",
        DataError,
        "0 <= window <= length, unless the offset is -1 or the sequence empty",
        _window_range,
        COMPRESSED,
    ),
    Rule("V6", DataError, "offset is -1, the length, or in 0 .. length - window", _offset_range, COMPRESSED, _REDUCING),
    Rule("V7", DataError, "slot + rows written <= NB * BS", _rows_in_cache, COMPRESSED),
    Rule("V8", DataError, "the row intervals of tasks are disjoint", _rows_disjoint, COMPRESSED),
)
