"""Scenario 5, Omni: a window of each head is dropped (the operator's specification, section 4.4)."""

from __future__ import annotations

from torch import Tensor

from .runs import Task, check_window, is_compressed, live_tasks, write_run


def reference(
    key: Tensor,
    key_cache: Tensor,
    slot_mapping: Tensor,
    value: Tensor,
    value_cache: Tensor,
    *,
    compress_lens: Tensor,
    seq_lens: Tensor,
    compress_seq_offset: Tensor,
) -> None:
    """Update both caches in place: tokens before the window, then tokens after it.

    key [T, H, Dk], value [T, H, Dv]; key_cache [NB, BS, 1, Dk], value_cache [NB, BS, 1, Dv]; slot_mapping,
    compress_lens and compress_seq_offset hold B*H integers, seq_lens [B] adds up to T. A task with a negative slot
    writes nothing. Raises ValueError, before any write, when seq_lens or a window does not fit.
    """
    tasks = live_tasks(key, slot_mapping, compress_lens, seq_lens, compress_seq_offset)
    for task in tasks:
        check_window(task)
    for source, cache in ((key, key_cache), (value, value_cache)):
        for task in tasks:
            write_task(cache, task.packed_rows(source), task)


def write_task(cache: Tensor, rows: Tensor, task: Task) -> None:
    """Write the task's rows [S, D]: all of them, or parts A and C."""
    slot, start, stop = task.slot, task.offset, task.offset + task.window
    if not is_compressed(task):
        write_run(cache, slot, rows)
        return
    write_run(cache, slot, rows[:start])
    write_run(cache, slot + start, rows[stop:])
