"""Where a (slot, group) row lies in a cache's memory.

Every cache is seen as rows of L elements. A token is G source rows; the row of (slot s, group g) is
``(s // block_size) * block_rows + (s % block_size) * slot_rows + group_rows[g]``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import torch

from .constants import constant
from .errors import TilingError
from .kernels.tiling import UNIFIED_BUFFER_BYTES

# half the unified buffer: a row must fit it beside the index
WIDEST_ROW_BYTES = UNIFIED_BUFFER_BYTES // 2

# axes of a cache: (block, slot, groups from outer to inner); the last axis holds the elements
AXES = {
    "Norm": (0, 1, (2,)),
    "NHSD": (0, 2, (1,)),
    "PA_NZ 4-D": (0, 2, (1,)),
    "PA_NZ 5-D": (0, 3, (1, 2)),
}


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The rows of one cache. All figures are in rows, but ``row``, which is in elements.

    row: L. group_rows: the row of each of the G groups, from that of group 0. num_rows: rows from the first of the
    cache to its last, gaps included.
    """

    row: int
    block_size: int
    block_rows: int
    slot_rows: int
    group_rows: tuple[int, ...]
    num_rows: int

    @property
    def groups(self) -> int:
        return len(self.group_rows)

    def slots_are_rows(self) -> bool:
        """Is the row of each slot the slot itself?"""
        return self.slot_rows == 1 and self.groups == 1 and self.block_rows == self.block_size

    def index(self, slots: torch.Tensor) -> torch.Tensor:
        """The row index [1, T*G] of ``slots`` [T] (int32 or int64, any stride), on their device and of their dtype.

        Contiguous; a view of contiguous slots that are rows. A negative slot gives a negative row for each group.
        """
        if self.slots_are_rows():
            return slots.contiguous().view(1, -1)
        skipped = self.block_rows - self.block_size * self.slot_rows  # rows between two blocks
        if skipped >= 0:
            rows = slots if self.slot_rows == 1 else slots * self.slot_rows
            if skipped:
                rows = torch.add(rows, slots // self.block_size, alpha=skipped)
        else:  # the same sum, whose terms could pass 31 bits where no row does
            rows = slots // self.block_size * self.block_rows + slots % self.block_size * self.slot_rows
        padding = slots < 0
        if self.groups > 1:
            rows = rows[:, None] + constant(slots, self.group_rows, slots.dtype)
            padding = padding[:, None]
        return rows.masked_fill(padding, -1).view(1, -1)

    def split(self, parts: int) -> RowLayout:
        """The same memory in rows of a ``parts``-th, which must divide ``row``."""
        return RowLayout(
            row=self.row // parts,
            block_size=self.block_size,
            block_rows=self.block_rows * parts,
            slot_rows=self.slot_rows * parts,
            group_rows=tuple(row * parts + part for row in self.group_rows for part in range(parts)),
            num_rows=self.num_rows * parts,
        )

    def cover(self, cache: torch.Tensor, num_rows: int | None = None) -> torch.Tensor:
        """The memory of ``cache``, gaps included, as contiguous rows [R, L]. No copy.

        cache: the one that the layout was made of, or one of the same strides with other blocks. num_rows: R where it
        is known, as for the former.
        """
        return cache.as_strided((num_rows or memory_span(cache) // self.row, self.row), (self.row, 1))

    def same_rows(self, other: RowLayout) -> bool:
        """Does one row index serve both caches?"""
        return (self.block_size, self.block_rows, self.slot_rows, self.group_rows) == (
            other.block_size,
            other.block_rows,
            other.slot_rows,
            other.group_rows,
        )


def row_layout(name: str, axes: str, cache: torch.Tensor, max_row_bytes: int = WIDEST_ROW_BYTES) -> RowLayout:
    """The rows of ``cache``; ``axes`` is a key of AXES, ``name`` the argument that an error names.

    max_row_bytes: wider rows are split into several groups.
    Raises TilingError (561002) where rows cannot express the cache's strides: nothing is ever copied instead.
    """
    shape, strides = cache.shape, cache.stride()
    block_axis, slot_axis, group_axes = AXES[axes]
    if shape[-1] > 1 and strides[-1] != 1:
        raise TilingError(
            f"{name} has stride {strides[-1]} along its last axis: it must be 1, a row must lie dense in memory.",
            "layout",
        )
    _refuse_overlap(name, shape, strides)

    row = shape[-1]
    groups = [(shape[axis], strides[axis]) for axis in group_axes if shape[axis] > 1]
    while groups and groups[-1][1] == row:
        row *= groups.pop()[0]
    steps = [stride for _, stride in groups]
    block_stride = strides[block_axis] if shape[block_axis] > 1 else 0
    slot_stride = strides[slot_axis] if shape[slot_axis] > 1 else 0
    unit = math.gcd(row, block_stride, slot_stride, *steps)
    max_row = max_row_bytes // cache.element_size()
    if unit > max_row:
        unit = max(part for part in range(1, max_row + 1) if unit % part == 0)

    heads = (sum(at) for at in product(*(range(0, size * stride, stride) for size, stride in groups)))
    block_size = shape[slot_axis]
    slot_rows = slot_stride // unit if slot_stride else 1
    return RowLayout(
        row=unit,
        block_size=block_size,
        block_rows=block_stride // unit if block_stride else block_size * slot_rows,
        slot_rows=slot_rows,
        group_rows=tuple((head + part) // unit for head in heads for part in range(0, row, unit)),
        num_rows=memory_span(cache) // unit,
    )


def memory_span(cache: torch.Tensor) -> int:
    """Elements of memory from the first of ``cache`` to its last."""
    return 1 + sum((size - 1) * stride for size, stride in zip(cache.shape, cache.stride(), strict=True) if size > 1)


def _refuse_overlap(name: str, shape: torch.Size, strides: tuple[int, ...]) -> None:
    """Each stride must reach past all that the smaller strides span, or two elements may share memory."""
    reach = 1
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1):
        if stride < reach:
            raise TilingError(
                f"{name} has shape {list(shape)} and strides {list(strides)}: its elements overlap in memory, "
                "and a cache must give each of them a place of its own.",
                "layout",
            )
        reach = stride * (size - 1) + reach
