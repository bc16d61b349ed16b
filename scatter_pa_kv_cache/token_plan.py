"""Plans of the scenarios that name a slot for each token: 1, 2, 6 and 7."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from .arguments import Arguments
from .carriers import carrier_dtype, group_rows, token_rows
from .errors import TilingError
from .golden.slots import bits
from .indexing import cache_axes, index_dtype, indexes_of
from .kernels.side import Side
from .kernels.tiling import UNIFIED_BUFFER_BYTES, choose_tiling, largest_tile
from .layout import RowLayout, row_layout
from .plans import Items, KernelPlan, SideTemplate, Template, kernel_of
from .rules import Choice

_NAMES = ("key", "value")


@dataclass(eq=False)
class TokenPlan(KernelPlan):
    """Token i's G rows go to the rows of ``slot_mapping[i]``."""

    _kept: tuple[torch.Tensor, ...] | None = field(default=None, init=False, repr=False)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        if self._kept is not None:
            return self._kept
        slots = self.arguments.slot_mapping
        if self.shared is not None:
            indexes = self.shared.indexes
        elif self.views:  # the slots are the rows of each side
            indexes = (slots.view(1, -1),) * len(self.sides)
        else:
            indexes = indexes_of(self._layouts, slots)
        tensors = (*[side.view.of(side.given) for side in self.sides], *indexes, *self.covers)
        if self.views:
            self._kept = tensors
        return tensors

    @property
    def _layouts(self) -> list[RowLayout]:
        return [side.layout for side in self.sides]

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
        return (*sources, *indexes_of(self._layouts, slots), *self.covers_of(caches))

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


def token_template(arguments: Arguments, choice: Choice) -> Template:
    """Raises TilingError where rows cannot express a cache's strides, or a token does not fit the unified buffer."""
    names = _NAMES[:1] if arguments.key_only else _NAMES
    axes = cache_axes(choice.scenario.cache_mode, choice.scatter_mode, arguments.key_cache)
    sources: list[torch.Tensor] = []
    dense: list[RowLayout] = []
    for number, name in enumerate(names):
        source, cache = _source(arguments, choice, number), getattr(arguments, f"{name}_cache")
        carrier = carrier_dtype(source, cache)
        sources.append(source.view(carrier))
        dense.append(row_layout(f"{name}_cache", axes, cache.view(carrier)))
    dtype = index_dtype(dense, arguments.slot_mapping.dtype)
    element_bytes = [source.element_size() for source in sources]
    layouts, parts = _cut(dense, element_bytes, dtype.itemsize)
    nct = choice.scatter_mode == "Nct"
    sides = tuple(
        _side(name, source, layout, parts, nct) for name, source, layout in zip(names, sources, layouts, strict=True)
    )
    tiling = choose_tiling(
        num_tokens=arguments.slot_mapping.shape[0] * parts,
        row_bytes=max(layout.row * size for layout, size in zip(layouts, element_bytes, strict=True)),
        index_bytes=dtype.itemsize,
        groups=max(side.side.groups for side in sides),
        caches=len(sides),
    )
    parameters: dict[str, object] = {"index_dtype": str(dtype).removeprefix("torch.")}
    if len(sides) == 2:
        parameters["one_index"] = layouts[0].same_rows(layouts[1])
    kernel = kernel_of(choice.module, sides, parameters | {"tile": tiling.tokens, "nbuffer": tiling.nbuffer})
    in_place = not any(side.view.packed for side in sides)
    slots = arguments.slot_mapping
    slots_are_rows = slots.is_contiguous() and slots.dtype is dtype and all(map(RowLayout.slots_are_rows, layouts))
    views = (in_place and slots_are_rows, in_place)
    return Template(TokenPlan, choice, kernel, max(1, tiling.tokens // parts), sides, views)


def _source(arguments: Arguments, choice: Choice, number: int) -> torch.Tensor:
    """The key (0) or the value (1). Nct's is [T, H, D] too, a token beginning at ``token * stride + offset``."""
    source: torch.Tensor = getattr(arguments, _NAMES[number])
    if choice.scatter_mode != "Nct":
        return source
    strides, offsets = arguments.spec.strides, arguments.spec.offsets
    assert strides is not None, "rule J1"
    assert offsets is not None, "rule J1"
    places = (strides[number], source.shape[-1], 1)
    return source.as_strided(source.shape, places, source.storage_offset() + offsets[number])


def _side(name: str, source: torch.Tensor, layout: RowLayout, parts: int, nct: bool) -> SideTemplate:
    view = token_rows(source) if layout.groups == 1 else group_rows(source, layout.row)
    if nct and view.placed is None:  # contiguous, and yet it need not begin where the argument does
        rows = (source.numel() // view.width, view.width), (view.width, 1)
        view = view._replace(placed=(*rows, int(source.storage_offset())))
    dtype = str(source.dtype).removeprefix("torch.")
    side = Side(dtype, layout.row, layout.groups // parts, view.width, view.column)
    return SideTemplate(name, source.dtype, view, layout, side)


def _cut(
    layouts: Sequence[RowLayout], element_bytes: Sequence[int], index_bytes: int
) -> tuple[Sequence[RowLayout], int]:
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
