"""Plans of the scenarios that name a slot for each token: 1, 2, 6 and 7."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from .arguments import Arguments
from .carriers import carry, group_rows, token_rows
from .errors import TilingError
from .golden.slots import bits
from .indexing import RowIndex, cache_axes, index_dtype, indexes_of
from .kernels.side import Side
from .kernels.tiling import UNIFIED_BUFFER_BYTES, choose_tiling, largest_tile
from .layout import RowLayout, row_layout
from .plans import Items, KernelPlan, SidePlan, cover_pair, kernel_of, side_parameters
from .rules import Choice

_NAMES = ("key", "value")


@dataclass(frozen=True)
class TokenPlan(KernelPlan):
    """Token i's G rows go to the rows of ``slot_mapping[i]``."""

    shared: RowIndex | None = None

    def tensors(self) -> tuple[torch.Tensor, ...]:
        sources = tuple(plan.source for plan in self.sides)
        caches = tuple(plan.cache for plan in self.sides)
        if self.shared is not None:
            indexes = self.shared.of(self._layouts)
        else:
            indexes = indexes_of(self._layouts, self.arguments.slot_mapping)
        return (*sources, *indexes, *cover_pair(self.sides, caches))

    @property
    def _layouts(self) -> tuple[RowLayout, ...]:
        return tuple(plan.layout for plan in self.sides)

    def items(self) -> Items:
        slots = self.arguments.slot_mapping
        capacity = self.sides[0].cache.shape[0] * self.sides[0].layout.block_size
        live = (slots >= 0) & (slots < capacity)
        numbers = _last_of_each(slots, torch.nonzero(live).flatten())
        return Items(numbers, slots[numbers], torch.ones_like(numbers))

    def part(
        self, numbers: torch.Tensor, slots: torch.Tensor, caches: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        sources = tuple(tokens_of(plan.source, plan.layout.groups, numbers) for plan in self.sides)
        return (*sources, *indexes_of(self._layouts, slots), *cover_pair(self.sides, caches))

    def rows_named(self, part: Items, index: torch.Tensor) -> torch.Tensor:
        return index[0].long()


def _last_of_each(slots: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Of several tokens on one slot the last one, as golden has it: on a device any of them may win."""
    order = numbers.flip(0)
    _, inverse = torch.unique(slots[order], return_inverse=True)
    first = torch.full((len(numbers),), len(numbers), dtype=torch.int64)
    first.scatter_reduce_(0, inverse, torch.arange(len(numbers)), "amin")
    return order[first[first < len(numbers)]].sort().values


def tokens_of(source: torch.Tensor, groups: int, numbers: torch.Tensor) -> torch.Tensor:
    """The rows of some tokens of a 2-D source [T*G, W]."""
    rows = numbers if groups == 1 else (numbers[:, None] * groups + torch.arange(groups)).view(-1)
    return bits(source)[rows].view(source.dtype)


def make_token_plan(arguments: Arguments, choice: Choice, run_mode: str, shared: RowIndex | None) -> TokenPlan:
    """``shared``: the row index that was handed in as slot_mapping. Raises InvalidParameterError if it does not fit."""
    names = _NAMES[:1] if arguments.key_only else _NAMES
    pairs = [_carried(arguments, choice, number) for number in range(len(names))]
    axes = cache_axes(choice.scenario.cache_mode, choice.scatter_mode, arguments.key_cache)
    layouts = tuple(row_layout(f"{name}_cache", axes, cache) for name, (_, cache) in zip(names, pairs, strict=True))
    dtype = index_dtype(layouts, arguments.slot_mapping.dtype)
    layouts, parts = _cut(layouts, tuple(cache.element_size() for _, cache in pairs), dtype.itemsize)
    if shared is not None:
        shared.of(layouts)
    sides = tuple(_side_plan(*pair, layout, parts) for pair, layout in zip(pairs, layouts, strict=True))
    tiling = choose_tiling(
        num_tokens=arguments.slot_mapping.shape[0] * parts,
        row_bytes=max(plan.side.row * plan.cache.element_size() for plan in sides),
        index_bytes=dtype.itemsize,
        groups=max(plan.side.groups for plan in sides),
        caches=len(sides),
    )
    parameters: dict[str, object] = {**side_parameters(names, sides), "index_dtype": str(dtype).removeprefix("torch.")}
    if len(sides) == 2:
        parameters["one_index"] = layouts[0].same_rows(layouts[1])
    parameters |= {"tile": tiling.tokens, "nbuffer": tiling.nbuffer}
    kernel = kernel_of(choice.module, parameters)
    return TokenPlan(arguments, run_mode, choice, kernel, max(1, tiling.tokens // parts), sides, shared)


def _carried(arguments: Arguments, choice: Choice, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Source and cache of the key (0) or the value (1) as carriers."""
    source, cache = getattr(arguments, _NAMES[number]), getattr(arguments, f"{_NAMES[number]}_cache")
    if choice.scatter_mode == "Nct":
        strides, offsets = arguments.spec.strides, arguments.spec.offsets
        assert strides is not None, "rule J1"
        assert offsets is not None, "rule J1"
        source = _nct_view(source, strides[number], offsets[number])
    return carry(source, cache)


def _nct_view(source: torch.Tensor, stride: int, offset: int) -> torch.Tensor:
    """Nct's [T, H, D]: a token's H*D elements begin at element ``token * stride + offset`` of the source's memory."""
    return source.as_strided(source.shape, (stride, source.shape[-1], 1), source.storage_offset() + offset)


def _cut(
    layouts: tuple[RowLayout, ...], element_bytes: tuple[int, ...], index_bytes: int
) -> tuple[tuple[RowLayout, ...], int]:
    """Layouts whose tokens fall into so many parts of equally many rows that each part fits the unified buffer.

    One part, but for tokens of about 192 KiB and more. Raises TilingError where no number of parts does.
    """
    widest = max(range(len(layouts)), key=lambda side: layouts[side].row * layouts[side].groups * element_bytes[side])
    for parts in range(1, layouts[widest].groups + 1):
        if any(layout.row * layout.groups % parts for layout in layouts) or layouts[widest].groups % parts:
            continue
        cut = tuple(layout.split(parts // math.gcd(parts, layout.groups)) for layout in layouts)
        groups = max(layout.groups for layout in cut) // parts
        row_bytes = max(layout.row * size for layout, size in zip(cut, element_bytes, strict=True))
        if largest_tile(row_bytes, index_bytes, groups):
            return cut, parts
    token = layouts[widest].row * layouts[widest].groups * element_bytes[widest]
    raise TilingError(
        f"{_NAMES[widest]} has {token} bytes a token, which do not fit the unified buffer of {UNIFIED_BUFFER_BYTES} "
        "bytes and cannot be cut into parts alike for key and value; a token must be smaller",
        "layout",
    )


def _side_plan(source: torch.Tensor, cache: torch.Tensor, layout: RowLayout, parts: int) -> SidePlan:
    rows, column = token_rows(source) if layout.groups == 1 else (group_rows(source, layout.row), 0)
    dtype = str(cache.dtype).removeprefix("torch.")
    return SidePlan(rows, cache, layout, Side(dtype, layout.row, layout.groups // parts, rows.shape[1], column))
