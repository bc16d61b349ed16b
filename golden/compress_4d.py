"""Scenario 3: Rope, Omni and Alibi on a padded 4-D key (the operator's specification, section 4.5)."""

from __future__ import annotations

from torch import Tensor

from . import alibi, omni, rope
from .runs import check_window, live_tasks


def reference(
    key: Tensor,
    key_cache: Tensor,
    slot_mapping: Tensor,
    value: Tensor,
    value_cache: Tensor,
    *,
    scatter_mode: str,
    compress_lens: Tensor,
    seq_lens: Tensor,
    compress_seq_offset: Tensor | None = None,
    dtype: str | None = None,
) -> None:
    """Update both caches in place as ``rope``, ``omni`` or ``alibi`` do, batch b being the plane ``source[b, :S[b]]``.

    key [B, L, H, Dk], value [B, L, H, Dv]; key_cache [NB, BS, 1, Dk], value_cache [NB, BS, 1, Dv]; slot_mapping and
    compress_lens [B, H], seq_lens [B] of at most L, compress_seq_offset [B*H] (Rope and Omni). ``dtype`` names the
    logical dtype where torch's does not. Raises ValueError, before any write, for another scatter mode, a missing
    compress_seq_offset, or lengths and windows that do not fit.
    """
    if scatter_mode not in ("Rope", "Omni", "Alibi"):
        raise ValueError(f"scatter_mode is {scatter_mode!r}; for a 4-D key it must be Rope, Omni or Alibi")
    if scatter_mode != "Alibi" and compress_seq_offset is None:
        raise ValueError(f"compress_seq_offset is None; scatter mode {scatter_mode} needs B*H integers")
    tasks = live_tasks(key, slot_mapping, compress_lens, seq_lens, compress_seq_offset)
    if scatter_mode != "Alibi":
        for task in tasks:
            check_window(task)
    for source, cache in ((key, key_cache), (value, value_cache)):
        for task in tasks:
            rows = task.padded_rows(source)
            if scatter_mode == "Rope":
                rope.write_task(cache, rows, task, dtype)
            elif scatter_mode == "Omni":
                omni.write_task(cache, rows, task)
            else:
                alibi.write_task(cache, rows, task)
