"""Plans of the scenarios that name a slot for each token: 1, 2, 6 and 7."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .arguments import Arguments
from .blocks import bits
from .carriers import carry, group_rows, token_rows
from .kernels.side import Side
from .kernels.tiling import UNIFIED_BUFFER_BYTES, choose_tiling
from .layout import row_layout
from .plans import Items, KernelPlan, SidePlan, cover_pair, kernel_of, side_parameters
from .rules import Choice

_NAMES = ("key", "value")


@dataclass(frozen=True)
class TokenPlan(KernelPlan):
    """Token i's G rows go to the rows of ``slot_mapping[i]``."""

    def tensors(self) -> tuple[torch.Tensor, ...]:
        sources = tuple(plan.source for plan in self.sides)
        return self._tensors(sources, self.arguments.slot_mapping, tuple(plan.cache for plan in self.sides))

    def items(self) -> Items:
        slots = self.arguments.slot_mapping
        capacity = self.sides[0].cache.shape[0] * self.sides[0].layout.block_size
        numbers = torch.nonzero((slots >= 0) & (slots < capacity)).flatten()
        return Items(numbers, slots[numbers], torch.ones_like(numbers))

    def part(
        self, numbers: torch.Tensor, slots: torch.Tensor, caches: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        sources = tuple(tokens_of(plan.source, plan.side.groups, numbers) for plan in self.sides)
        return self._tensors(sources, slots, caches)

    def _tensors(
        self, sources: tuple[torch.Tensor, ...], slots: torch.Tensor, caches: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        layouts = [plan.layout for plan in self.sides]
        index = layouts[0].index(slots)
        indexes = (index if layout.same_rows(layouts[0]) else layout.index(slots) for layout in layouts)
        return (*sources, *indexes, *cover_pair(self.sides, caches))


def tokens_of(source: torch.Tensor, groups: int, numbers: torch.Tensor) -> torch.Tensor:
    """The rows of some tokens of a 2-D source [T*G, W]."""
    rows = numbers if groups == 1 else (numbers[:, None] * groups + torch.arange(groups)).view(-1)
    return bits(source)[rows].view(source.dtype)


def make_token_plan(arguments: Arguments, choice: Choice, run_mode: str) -> TokenPlan:
    names = _NAMES[:1] if arguments.key_only else _NAMES
    sides = tuple(_side_plan(arguments, choice, number) for number in range(len(names)))
    wide = any(plan.layout.num_rows > 2**31 - 1 for plan in sides)
    index_dtype = "int64" if wide or arguments.slot_mapping.dtype == torch.int64 else "int32"
    tiling = choose_tiling(
        num_tokens=arguments.slot_mapping.shape[0],
        row_bytes=max(plan.side.row * plan.cache.element_size() for plan in sides),
        index_bytes=8 if index_dtype == "int64" else 4,
        groups=max(plan.side.groups for plan in sides),
        caches=len(sides),
    )
    parameters: dict[str, object] = {**side_parameters(names, sides), "index_dtype": index_dtype}
    if len(sides) == 2:
        parameters["one_index"] = sides[0].layout.same_rows(sides[1].layout)
    parameters |= {"tile": tiling.tokens, "nbuffer": tiling.nbuffer}
    kernel = kernel_of(choice.module, parameters)
    return TokenPlan(arguments, run_mode, choice, kernel, tiling.tokens, sides)


def _side_plan(arguments: Arguments, choice: Choice, number: int) -> SidePlan:
    name = _NAMES[number]
    source, cache = getattr(arguments, name), getattr(arguments, f"{name}_cache")
    if choice.scatter_mode == "Nct":
        strides, offsets = arguments.spec.strides, arguments.spec.offsets
        assert strides is not None, "rule J1"
        assert offsets is not None, "rule J1"
        source = _nct_view(source, strides[number], offsets[number])
    source, cache = carry(source, cache)
    layout = row_layout(f"{name}_cache", _axes(choice, cache), cache, UNIFIED_BUFFER_BYTES // 2 // cache.element_size())
    rows, column = token_rows(source) if layout.groups == 1 else (group_rows(source, layout.row), 0)
    dtype = str(cache.dtype).removeprefix("torch.")
    return SidePlan(rows, cache, layout, Side(dtype, layout.row, layout.groups, rows.shape[1], column))


def _nct_view(source: torch.Tensor, stride: int, offset: int) -> torch.Tensor:
    """Nct's [T, H, D]: a token's H*D elements begin at element ``token * stride + offset`` of the source's memory."""
    return source.as_strided(source.shape, (stride, source.shape[-1], 1), source.storage_offset() + offset)


def _axes(choice: Choice, cache: torch.Tensor) -> str:
    if choice.scenario.cache_mode == "PA_NZ":
        return f"PA_NZ {cache.dim()}-D"
    return "NHSD" if choice.scatter_mode == "NHSD" else "Norm"
