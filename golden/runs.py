"""What the compressed scenarios share: tasks, rows and runs of cache rows (the operator's specification, section 4)."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from .slots import bits


class Task(NamedTuple):
    """One (batch, head): where its tokens lie and what is asked of them.

    ``start`` is base[b], ``length`` S[b], ``window`` w[t] and ``offset`` o[t] of the operator's specification.
    """

    batch: int
    head: int
    start: int
    length: int
    slot: int
    window: int
    offset: int

    def packed_rows(self, source: Tensor) -> Tensor:
        """The task's tokens in source [T, H, D], whose batches follow one another: [S, D]."""
        return source[self.start : self.start + self.length, self.head]

    def padded_rows(self, source: Tensor) -> Tensor:
        """The task's tokens in source [B, L, H, D], one padded plane a batch: [S, D]."""
        return source[self.batch, : self.length, self.head]


def live_tasks(
    key: Tensor,
    slot_mapping: Tensor,
    compress_lens: Tensor,
    seq_lens: Tensor,
    compress_seq_offset: Tensor | None = None,
) -> list[Task]:
    """The tasks whose slot is not negative, in ascending order of t = b*H + h.

    key [T, H, D] or [B, L, H, D]; seq_lens [B]; the others hold B*H integers, read flattened. Raises ValueError when
    seq_lens names tokens that the key does not have.
    """
    lengths = seq_lens.tolist()
    _check_lengths(lengths, key)
    starts, heads = [0, *accumulate(lengths)], key.shape[-2]
    slots, windows = slot_mapping.flatten().tolist(), compress_lens.flatten().tolist()
    offsets = [-1] * len(slots) if compress_seq_offset is None else compress_seq_offset.flatten().tolist()
    tasks = []
    for t in range(len(lengths) * heads):
        batch, head = divmod(t, heads)
        if slots[t] >= 0:
            tasks.append(Task(batch, head, starts[batch], lengths[batch], slots[t], windows[t], offsets[t]))
    return tasks


def check_window(task: Task) -> None:
    """Raise ValueError unless the task is uncompressed or its window lies inside its sequence (section 4.4)."""
    if is_compressed(task) and not (task.offset >= 0 and task.window >= 1 and task.offset + task.window <= task.length):
        raise ValueError(
            f"batch {task.batch}, head {task.head}: compress_seq_offset is {task.offset} and compress_lens is "
            f"{task.window}; together they must stay inside the sequence of {task.length} tokens"
        )


def is_compressed(task: Task) -> bool:
    """Whether a window of the task is averaged or dropped; if not, all its tokens are copied (section 4.4)."""
    return task.offset != -1 and task.window != 0 and task.offset != task.length


def write_run(cache: Tensor, first_row: int, run: Tensor) -> None:
    """Write run [n, D] to rows first_row, first_row + 1, ... of cache [NB, BS, 1, D]; rows past its end are skipped."""
    num_blocks, block_size = cache.shape[:2]
    count = max(0, min(len(run), num_blocks * block_size - first_row))
    rows = first_row + torch.arange(count, device=cache.device)
    bits(cache)[rows // block_size, rows % block_size, 0] = bits(run)[:count]


def _check_lengths(lengths: list[int], key: Tensor) -> None:
    if min(lengths, default=0) < 0:
        raise ValueError(f"seq_lens is {lengths}; a length must not be negative")
    if key.dim() == 3 and sum(lengths) > key.shape[0]:
        raise ValueError(f"seq_lens adds up to {sum(lengths)}; it must not exceed the {key.shape[0]} tokens of the key")
    if key.dim() == 4 and max(lengths, default=0) > key.shape[1]:
        raise ValueError(f"seq_lens is {lengths}; a length must not exceed the {key.shape[1]} tokens of a batch")
