"""What the compressed kernels share: a task's tokens as runs of rows, copied tile by tile or averaged."""

from dataclasses import dataclass
from typing import Any

import pypto

from ..patterns.cache_scatter import run_index, scatter_rows


def task_loop(slot_mapping):
    """Loop over the tasks, one for each (batch, head), of slot_mapping [B*H]."""
    return pypto.loop(slot_mapping.shape[0], name="tasks", idx_name="task", unroll_list=[1])


def positive(scalar):
    """1 where ``scalar`` > 0, else 0: products of these keep one code path, where ``if`` makes one a combination."""
    return scalar.min(1).max(0)


@dataclass
class Target:
    """Key or value inside a kernel: its tensors and its :class:`~scatter_pa_kv_cache.kernels.side.Side`.

    source: [N, W], a token a row. slot_rows: [G, cap], the cache row of every slot and group.
    cache: 4-D and rows_out: [R, L], one memory.
    """

    side: Any
    source: Any
    slot_rows: Any
    cache: Any
    rows_out: Any

    def tokens(self, head, group, first, count, tile):
        """One group of one head of tokens ``first .. first+count-1``: [tile, L], count rows valid."""
        row = self.side.row
        column = self.side.column + (head * self.side.groups + group) * row
        pypto.set_vec_tile_shapes(tile, row)
        return pypto.view(self.source, [tile, row], [first, column], valid_shape=[count, row])

    def write(self, rows, group, slot, count, tile):
        """Write ``rows`` [tile, L], count of them valid, to the slots from ``slot`` on."""
        scatter_rows(self.rows_out, self.cache, run_index(self.slot_rows, slot, count, tile, group), rows)


def copy_run(targets, head, first, slot, length, tile):
    """Copy ``length`` tokens of ``head`` from token ``first`` on to the slots from ``slot`` on."""
    for number in pypto.loop((length + tile - 1) // tile, name="run", idx_name="number", unroll_list=[1]):
        done = number * tile
        copy_tile(targets, head, first + done, slot + done, (length - done).min(tile), tile)


def copy_around_window(targets, head, first, slot, parts, tile):
    """Copy what stands before the window of a task and what stands after it: one loop over the tiles of both."""
    before_tiles = (parts.before + tile - 1) // tile
    after_tiles = (parts.after + tile - 1) // tile
    for number in pypto.loop(before_tiles + after_tiles, name="parts", idx_name="number", unroll_list=[1]):
        is_after = positive(number - before_tiles + 1)
        done = (number - is_after * before_tiles) * tile
        count = (is_after * parts.after + (1 - is_after) * parts.before - done).min(tile)
        token = first + done + is_after * (parts.before + parts.window)
        row = slot + done + is_after * (parts.before + parts.window_rows)
        copy_tile(targets, head, token, row, count, tile)


def copy_tile(targets, head, first, slot, count, tile):
    """Copy ``count`` tokens, at most ``tile``, of ``head`` to consecutive slots: keys and values alike."""
    for target in targets:
        for group in range(target.side.groups):
            target.write(target.tokens(head, group, first, count, tile), group, slot, count, tile)


@dataclass
class Parts:
    """Tokens of a task before its window, in it and after it, and the cache rows that the window leaves (Rope 1)."""

    before: Any
    window: Any
    after: Any
    window_rows: int


def window_parts(slot, length, window, offset, window_rows):
    """The parts of a Rope or Omni task, as scalars.

    All tokens stand before a window of none where offset is -1 or equals length, or window is 0; a negative slot
    leaves nothing at all.
    """
    alive = positive(slot + 1)
    compressed = positive(offset + 1) * positive(window) * positive(length - offset) * alive
    return Parts(
        before=length * alive - compressed * (length - offset),
        window=window * compressed,
        after=(length - offset - window) * compressed,
        window_rows=window_rows,
    )


def write_mean(targets, head, first, slot, window, divisors, task, tile):
    """Write the mean of ``window`` tokens of ``head`` from token ``first`` on to ``slot``; nothing where window is 0.

    Sums in the dtype of divisors [B*H, 1], the windows (fp32, or int32 for 32-bit integers), tile after tile; one
    division; floats are rounded to nearest even, integers towards zero. The rows of a tile are added in the order of
    ``pypto.sum``, which is not ascending: a mean may be rounded otherwise than in that order.
    """
    for target in targets:
        for group in range(target.side.groups):
            total = pypto.tensor([1, target.side.row], divisors.dtype, "total")
            for number in pypto.loop((window + tile - 1) // tile, name="window", idx_name="number", unroll_list=[1]):
                done = number * tile
                rows = target.tokens(head, group, first + done, (window - done).min(tile), tile)
                part = pypto.sum(to_numbers(rows, target.side, divisors.dtype), 0, True)
                if pypto.cond(pypto.is_loop_begin(number)):
                    total[:] = part
                else:
                    total[:] = total + part
                if pypto.cond(pypto.is_loop_end(number)):
                    mean = total / pypto.view(divisors, [1, 1], [task, 0])
                    target.write(from_numbers(mean, target.side, rows.dtype), group, slot, 1, 1)


def to_numbers(rows, side, dtype):
    """Rows of a carrier as the numbers they stand for; an unsigned type arrives as the signed one of its width."""
    numbers = rows if rows.dtype == dtype else pypto.cast(rows, dtype)
    if side.wraps:
        numbers = numbers + pypto.minimum(pypto.maximum(numbers * -1.0, 0.0), 1.0) * side.wraps
    return numbers


def from_numbers(numbers, side, dtype):
    """The inverse of :func:`to_numbers`, rounding: integers towards zero, floats to nearest even."""
    if numbers.dtype == dtype:
        return numbers
    if not side.is_integer:
        return pypto.cast(numbers, dtype, pypto.CastMode.CAST_RINT)
    whole = pypto.cast(pypto.cast(numbers, pypto.DT_INT32, pypto.CastMode.CAST_TRUNC), pypto.DT_FP32)
    if side.wraps:
        above = pypto.minimum(pypto.maximum(whole - (side.wraps / 2 - 1), 0.0), 1.0)
        whole = whole - above * side.wraps
    return pypto.cast(whole, dtype, pypto.CastMode.CAST_TRUNC)
