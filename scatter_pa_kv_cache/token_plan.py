"""Plans of the scenarios that name a slot for each token: 1, 2, 6 and 7."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .arguments import Arguments
from .carriers import carry, group_rows, token_rows
from .golden.slots import bits
from .indexing import RowIndex, cache_axes, index_dtype, indexes_of
from .kernels.side import Side
from .kernels.tiling import choose_tiling
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
        numbers = torch.nonzero((slots >= 0) & (slots < capacity)).flatten()
        return Items(numbers, slots[numbers], torch.ones_like(numbers))

    def part(
        self, numbers: torch.Tensor, slots: torch.Tensor, caches: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        sources = tuple(tokens_of(plan.source, plan.side.groups, numbers) for plan in self.sides)
        return (*sources, *indexes_of(self._layouts, slots), *cover_pair(self.sides, caches))


def tokens_of(source: torch.Tensor, groups: int, numbers: torch.Tensor) -> torch.Tensor:
    """The rows of some tokens of a 2-D source [T*G, W]."""
    rows = numbers if groups == 1 else (numbers[:, None] * groups + torch.arange(groups)).view(-1)
    return bits(source)[rows].view(source.dtype)


def make_token_plan(arguments: Arguments, choice: Choice, run_mode: str, shared: RowIndex | None) -> TokenPlan:
    """``shared``: the row index that was handed in as slot_mapping. Raises InvalidParameterError if it does not fit."""
    names = _NAMES[:1] if arguments.key_only else _NAMES
    sides = tuple(_side_plan(arguments, choice, number) for number in range(len(names)))
    layouts = tuple(plan.layout for plan in sides)
    if shared is not None:
        shared.of(layouts)
    dtype = index_dtype(layouts, arguments.slot_mapping.dtype)
    tiling = choose_tiling(
        num_tokens=arguments.slot_mapping.shape[0],
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
    return TokenPlan(arguments, run_mode, choice, kernel, tiling.tokens, sides, shared)


def _side_plan(arguments: Arguments, choice: Choice, number: int) -> SidePlan:
    name = _NAMES[number]
    source, cache = getattr(arguments, name), getattr(arguments, f"{name}_cache")
    if choice.scatter_mode == "Nct":
        strides, offsets = arguments.spec.strides, arguments.spec.offsets
        assert strides is not None, "rule J1"
        assert offsets is not None, "rule J1"
        source = _nct_view(source, strides[number], offsets[number])
    source, cache = carry(source, cache)
    axes = cache_axes(choice.scenario.cache_mode, choice.scatter_mode, cache)
    layout = row_layout(f"{name}_cache", axes, cache)
    rows, column = token_rows(source) if layout.groups == 1 else (group_rows(source, layout.row), 0)
    dtype = str(cache.dtype).removeprefix("torch.")
    return SidePlan(rows, cache, layout, Side(dtype, layout.row, layout.groups, rows.shape[1], column))


def _nct_view(source: torch.Tensor, stride: int, offset: int) -> torch.Tensor:
    """Nct's [T, H, D]: a token's H*D elements begin at element ``token * stride + offset`` of the source's memory."""
    return source.as_strided(source.shape, (stride, source.shape[-1], 1), source.storage_offset() + offset)
