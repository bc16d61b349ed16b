"""Scenario 4: the newest tokens of each head (the operator's specification, section 4.3)."""

from __future__ import annotations

from torch import Tensor

from .runs import Task, live_tasks, write_run


def reference(
    key: Tensor,
    key_cache: Tensor,
    slot_mapping: Tensor,
    value: Tensor,
    value_cache: Tensor,
    *,
    compress_lens: Tensor,
    seq_lens: Tensor,
) -> None:
    """Update both caches in place with the last ``compress_lens`` tokens of every (batch, head), oldest first.

    key [T, H, Dk], value [T, H, Dv]; key_cache [NB, BS, 1, Dk], value_cache [NB, BS, 1, Dv]; slot_mapping and
    compress_lens hold B*H integers, seq_lens [B] adds up to T. A task with a negative slot writes nothing. Raises
    ValueError when seq_lens names tokens that the key does not have.
    """
    tasks = live_tasks(key, slot_mapping, compress_lens, seq_lens)
    for source, cache in ((key, key_cache), (value, value_cache)):
        for task in tasks:
            write_task(cache, task.packed_rows(source), task)


def write_task(cache: Tensor, rows: Tensor, task: Task) -> None:
    """Copy the last w of the task's rows [S, D]; where w > S the rows before the sequence are left alone."""
    missing = max(0, task.window - task.length)
    kept = max(0, task.window - missing)
    write_run(cache, task.slot + missing, rows[task.length - kept :])
