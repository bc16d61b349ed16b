"""The PyPTO interpreter as a run mode: real values on a CPU-only host, every one of them checked.

A call is computed by the kernel's tensor graph, in launches of a few tiles on the rows around those that they write,
each compared bit for bit with golden. The same kernel is verified once, pass by pass, on a small cache. The caches
change only when all of it is right.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from .blocks import put_blocks, take_blocks, touched_blocks
from .errors import SimulationError
from .gate import launch
from .golden.slots import bits
from .means import mean_bounds, refusal
from .plans import Items, KernelPlan
from .probes import make_probe
from .reference import reference
from .runtime import Kernel
from .task_plan import TaskPlan

MEMORY_VARIABLE = "SCATTER_PA_KV_CACHE_SIM_MEMORY"
TILES = 4  # tiles of a launch, where memory allows
NEIGHBOURS = 8  # rows of a cache that a launch sees around each one that it writes, aligned to as many
SPARSE = 4 * 2**20  # bytes of rows that a launch may see before it is cut down to two tiles: time grows with both
# bytes that the interpreter needs for each byte of rows and iteration of the loop, measured
COPIES = 10

_verified: set[Kernel] = set()


def memory_budget() -> int:
    """Bytes that a sim call may use: $SCATTER_PA_KV_CACHE_SIM_MEMORY (in GiB), by default half of the machine's."""
    text = os.environ.get(MEMORY_VARIABLE)
    if text is None:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    try:
        budget = int(float(text) * 2**30)
    except (ValueError, OverflowError):
        budget = 0
    if budget <= 0:
        raise SimulationError(f"{MEMORY_VARIABLE} is {text!r}: it must be a number of GiB, such as 4 or 0.5.")
    return budget


@dataclass(frozen=True)
class Touched:
    """Copies of the touched blocks of a call's caches, and their rows [R, L].

    rows: the memory of caches. goldens: what the call should leave there; bounds: how far means may be off it.
    """

    caches: tuple[torch.Tensor, ...]
    rows: list[torch.Tensor]
    goldens: list[torch.Tensor]
    bounds: list[torch.Tensor] | None


def run(plan: KernelPlan) -> None:
    """Update the plan's caches in place. Raises SimulationError, the caches untouched, if any verdict is not PASS."""
    # the device skips negative slots, the interpreter cannot: padding is no item and never reaches it
    items = plan.items()
    if not len(items.numbers):
        return
    if isinstance(plan, TaskPlan):
        plan = _computable(plan)
    _verify(plan)
    caches = plan.caches
    blocks, slots = touched_blocks(caches, items.slots, items.rows, plan.sides[0].layout.block_size)
    items = replace(items, slots=slots)
    touched = _touch(plan, items, blocks)
    for part in _parts(plan, items, touched):
        _compute(plan, part, touched)
    try:
        _commit(caches, blocks, touched)
    except BaseException:  # an interrupt between two caches: finish both before it goes on
        _commit(caches, blocks, touched)
        raise


def _commit(caches: Sequence[torch.Tensor], blocks: torch.Tensor, touched: Touched) -> None:
    for cache, small in zip(caches, touched.caches, strict=True):
        put_blocks(cache, blocks, small)


def _touch(plan: KernelPlan, items: Items, blocks: torch.Tensor) -> Touched:
    require(2 * sum(len(blocks) * side.cache[0].numel() * side.cache.element_size() for side in plan.sides), "write")
    caches = tuple(take_blocks(side.cache, blocks) for side in plan.sides)
    golden_caches = [take_blocks(cache, torch.arange(len(cache))) for cache in caches]
    reference(plan, items.numbers, items.slots, golden_caches)
    layouts = [side.layout for side in plan.sides]
    goldens = [layout.cover(cache) for layout, cache in zip(layouts, golden_caches, strict=True)]
    return Touched(
        caches=caches,
        rows=[layout.cover(cache) for layout, cache in zip(layouts, caches, strict=True)],
        goldens=goldens,
        bounds=mean_bounds(plan, items.numbers, items.slots, goldens) if isinstance(plan, TaskPlan) else None,
    )


def _parts(plan: KernelPlan, items: Items, touched: Touched) -> Iterator[Items]:
    """Consecutive items for one launch each: a few tiles, or as few items as it takes to stay within the budget."""
    held = 2 * sum(rows.nbytes for rows in touched.rows)
    token_bytes = sum(side.layout.row * side.layout.groups * side.cache.element_size() for side in plan.sides)
    first = 0
    while first < len(items.numbers):
        part = items.slice(first, first + TILES * plan.tile)
        while True:
            written = int(part.rows.sum())
            tiles = -(-written // plan.tile)
            seen = min((written + (2 * NEIGHBOURS - 1) * len(part.numbers)) * token_bytes, held // 2)
            needed = held + seen * COPIES * tiles
            if len(part.numbers) == 1:
                require(needed, "write")
                break
            if needed <= memory_budget() and (seen <= SPARSE or tiles <= 2):
                break
            part = part.slice(0, len(part.numbers) // 2)
        yield part
        first += len(part.numbers)


def require(needed: int, doing: str) -> None:
    """Raise SimulationError where a call needs more bytes than it may use. doing: what it should do less of."""
    if needed > memory_budget():
        raise SimulationError(
            f"sim would need about {needed / 2**30:.3g} GiB for this call and may use {memory_budget() / 2**30:.3g}: "
            f"set {MEMORY_VARIABLE} (in GiB) higher, or {doing} fewer tokens in a call."
        )


def _compute(plan: KernelPlan, part: Items, touched: Touched) -> None:
    """Write a part into the touched rows, by the kernel, which sees no more rows than those around the written ones."""
    tensors = list(plan.part(part.numbers, part.slots, touched.caches))
    sides = len(plan.sides)
    index_at, read_at, written_at = (len(tensors) - sides * back for back in (3, 2, 1))
    goldens, bounds, written = [], [], []
    for side in range(sides):
        index, rows = tensors[index_at + side], touched.rows[side]
        named = plan.rows_named(part, index)
        window = Window(named, len(rows))
        small = window.take(rows)
        tensors[index_at + side] = window.renumber(index)
        tensors[read_at + side], tensors[written_at + side] = small[None, :, None], small
        golden = small.clone()
        bits(golden)[window.renumber(named)] = bits(touched.goldens[side])[named]
        goldens.append(golden)
        written.append((named, window.renumber(named)))
        if touched.bounds is not None:
            bounds.append(window.take(touched.bounds[side]))
    results = launch(
        plan.kernel,
        "values",
        tensors,
        last_parameters(tensors, goldens),
        bounds=last_parameters(tensors, bounds) if bounds else None,
    )
    for rows, result, (named, small_named) in zip(touched.rows, results.values(), written, strict=True):
        bits(rows)[named] = bits(result)[small_named]


class Window:
    """The rows of a cache around some of them, in groups of NEIGHBOURS, as a small cache of its own."""

    def __init__(self, named: torch.Tensor, num_rows: int) -> None:
        self._groups = torch.unique(named // NEIGHBOURS)
        rows = (self._groups[:, None] * NEIGHBOURS + torch.arange(NEIGHBOURS)).view(-1)
        self._rows = rows[rows < num_rows]

    def take(self, rows: torch.Tensor) -> torch.Tensor:
        return bits(rows)[self._rows].view(rows.dtype)

    def renumber(self, index: torch.Tensor) -> torch.Tensor:
        """The same rows counted in the small cache; -1 for those outside it, of which no kernel reads the index."""
        group = (index // NEIGHBOURS).long()
        number = torch.searchsorted(self._groups, group).clamp(max=len(self._groups) - 1)
        small = number * NEIGHBOURS + index % NEIGHBOURS
        return torch.where(self._groups[number] == group, small, -1).to(index.dtype)


def last_parameters(tensors: Sequence[torch.Tensor], goldens: list[torch.Tensor]) -> dict[int, torch.Tensor]:
    """The goldens by the numbers of the parameters that a kernel writes: its last ones."""
    return dict(enumerate(goldens, len(tensors) - len(goldens)))


def _computable(plan: TaskPlan) -> TaskPlan:
    """The plan, or that of the copies alone where nothing is averaged, which the interpreter can do for every dtype."""
    if plan.choice.scatter_mode != "Rope":
        return plan
    if not plan.windows().any():
        return plan.without_means()
    reason = refusal(plan)
    if reason is not None:
        raise SimulationError(reason)
    return plan


def _verify(plan: KernelPlan) -> None:
    """Every compiler pass of the plan's kernel, once in this process, on a small cache."""
    if plan.kernel not in _verified:
        probe = make_probe(plan)
        goldens = last_parameters(probe.tensors, probe.goldens)
        bounds = last_parameters(probe.tensors, probe.bounds) if probe.bounds else None
        launch(plan.kernel, "verdicts", probe.tensors, goldens, bounds=bounds, results=probe.results)
        _verified.add(plan.kernel)
