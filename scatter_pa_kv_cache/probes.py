"""Small launches of a plan's own kernel, on which sim verifies every compiler pass once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from .carriers import SourceView
from .golden.slots import bits
from .layout import RowLayout
from .means import mean_bounds
from .plans import KernelPlan, SidePlan, pairs
from .reference import reference
from .task_plan import TaskPlan
from .token_plan import TokenPlan, tokens_of

_SPARE_ROWS = 8  # rows of a probe's cache that nothing is written to


@dataclass(frozen=True)
class Probe:
    """A launch: the kernel's tensors, what it should leave in the last of them, and how many results a pass has.

    bounds: how far from the goldens the results may be, None for not at all.
    """

    tensors: tuple[torch.Tensor, ...]
    goldens: list[torch.Tensor]
    results: int
    bounds: list[torch.Tensor] | None = None


def make_probe(plan: KernelPlan) -> Probe:
    if isinstance(plan, TokenPlan):
        return _token_probe(plan)
    assert isinstance(plan, TaskPlan)
    return _task_probe(plan)


def _token_probe(plan: TokenPlan) -> Probe:
    """A whole tile of the kernel and a shorter one, of rows of the call, to random rows of caches of noise."""
    parameters = dict(plan.kernel.arguments)
    count = parameters["tile"] + max(1, parameters["tile"] // 2)
    random = torch.Generator().manual_seed(0)
    sources: list[torch.Tensor] = []
    indexes: list[torch.Tensor] = []
    covers: list[torch.Tensor] = []
    goldens: list[torch.Tensor] = []
    for side in plan.sides:
        rows = count * side.side.groups
        sources.append(tokens_of(side.source, 1, torch.arange(rows) % len(side.source)))
        if indexes and parameters["one_index"]:
            indexes.append(indexes[0])
        else:
            order = torch.randperm(rows + _SPARE_ROWS, generator=random)[:rows]
            indexes.append(order.view(1, -1).to(getattr(torch, parameters["index_dtype"])))
        covers.append(_noise(side, rows + _SPARE_ROWS, random))
        golden = covers[-1].clone()
        written = sources[-1][:, side.side.column : side.side.column + side.side.row]
        bits(golden)[indexes[-1][0].long()] = bits(written)
        goldens.append(golden)
    return Probe((*sources, *indexes, *pairs(covers)), goldens, results=2 * len(covers))


def _task_probe(plan: TaskPlan) -> Probe:
    """One sequence: a first task whose window lies between parts longer than a tile, a second without a window, and
    padding for the other heads."""
    parameters = dict(plan.kernel.arguments)
    tile, heads = parameters["tile"], parameters["heads"]
    mode = plan.choice.scatter_mode
    window = tile + 1
    length = 2 * window + 2
    padding = [-1] * max(0, heads - 2)
    random = torch.Generator().manual_seed(0)
    sides = tuple(_probe_side(side, 2 * length, length, random) for side in plan.sides)
    tokens = {name: _probe_tokens(plan, side, name) for name, side in zip(("key", "value"), sides, strict=True)}
    arguments = plan.arguments._replace(
        key=tokens["key"],
        value=tokens["value"],
        slot_mapping=torch.tensor([0, length, *padding][:heads], dtype=torch.int32),
        compress_lens=torch.tensor([window, 1, *padding][:heads], dtype=torch.int32),
        compress_seq_offset=torch.tensor([window, -1, *padding][:heads], dtype=torch.int32),
        seq_lens=torch.tensor([length], dtype=torch.int32),
    )
    probe = replace(
        plan, arguments=arguments, sides=sides, covers=pairs([side.layout.cover(side.cache) for side in sides])
    )
    goldens = [side.cache.clone() for side in sides]
    reference(probe, torch.arange(heads), arguments.slot_mapping, goldens)

    others = min(heads - 1, 1)  # the second task: one row in Alibi, all its tokens otherwise
    tiles = 2 + others if mode == "Alibi" else 3 + others * -(-length // tile)
    results = 2 * tiles
    if mode == "Rope":  # two tiles of the window, and the mean itself
        results += 3 * sum(side.side.groups for side in sides)
    covers = [side.layout.cover(golden) for side, golden in zip(sides, goldens, strict=True)]
    bounds = mean_bounds(probe, torch.arange(heads), arguments.slot_mapping, covers)
    return Probe(probe.tensors(), covers, results, bounds)


def _probe_side(side: SidePlan, slots: int, length: int, random: torch.Generator) -> SidePlan:
    """The side with ``length`` of its tokens and a dense cache [1, slots + spare, 1, D] of noise."""
    groups, capacity = side.side.groups, slots + _SPARE_ROWS
    cover = _noise(side, capacity * groups, random)
    layout = RowLayout(side.side.row, capacity, capacity * groups, groups, tuple(range(groups)), capacity * groups)
    source = tokens_of(side.source, 1, torch.arange(length) % len(side.source))
    view = SourceView(None, side.side.width, side.side.column)
    return SidePlan(source, cover.view(1, capacity, 1, -1), view, layout, side.side)


def _probe_tokens(plan: TaskPlan, side: SidePlan, name: str) -> torch.Tensor:
    """The tokens of a probe's source as the call's own argument would hold them."""
    given: torch.Tensor = getattr(plan.arguments, name)
    heads, width = given.shape[-2], side.side.row * side.side.groups
    tokens = side.source[:, side.side.column : side.side.column + heads * width].unflatten(1, (heads, width))
    tokens = tokens.view(given.dtype)
    return tokens[None] if given.dim() == 4 else tokens


def _noise(side: SidePlan, rows: int, random: torch.Generator) -> torch.Tensor:
    """A cache [rows, L] of random bits."""
    size = side.cache.element_size()
    noise = torch.randint(0, 256, (rows, side.side.row * size), generator=random, dtype=torch.uint8)
    return noise.view(side.cache.dtype)
