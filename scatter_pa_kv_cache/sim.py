"""The PyPTO interpreter as a run mode: real values on a CPU-only host, every one of them checked.

A call is computed by the kernel's tensor graph, in launches of a few tiles on the blocks that they touch, each compared
bit for bit with golden. The same kernel is verified once, pass by pass, on a small cache. The caches change only when
all of it is right.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from .blocks import put_blocks, take_blocks, touched_blocks
from .errors import SimulationError
from .gate import launch
from .means import mean_bounds, refusal
from .plans import Items, KernelPlan
from .probes import make_probe
from .reference import reference
from .runtime import Kernel
from .task_plan import TaskPlan

MEMORY_VARIABLE = "SCATTER_PA_KV_CACHE_SIM_MEMORY"
TILES = 4  # tiles of a launch, where memory allows
SPARSE = 32 * 2**20  # bytes of caches that a launch may touch before it is cut down to one tile: time grows with both
# bytes that the interpreter needs for each byte of the caches and iteration of the loop, measured
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


def run(plan: KernelPlan) -> None:
    """Update the plan's caches in place. Raises SimulationError, the caches untouched, if any verdict is not PASS."""
    # the device skips negative slots, the interpreter cannot: padding is no item and never reaches it
    items = plan.items()
    if not len(items.numbers):
        return
    if isinstance(plan, TaskPlan):
        plan = _computable(plan)
    _verify(plan)
    caches = [side.cache for side in plan.sides]
    block_size = plan.sides[0].layout.block_size
    blocks, slots = touched_blocks(caches[0], items.slots, items.rows, block_size)
    shadows = [take_blocks(cache, blocks) for cache in caches]
    for part in _parts(plan, replace(items, slots=slots), shadows):
        part_blocks, part_slots = touched_blocks(shadows[0], part.slots, part.rows, block_size)
        small = tuple(take_blocks(shadow, part_blocks) for shadow in shadows)
        for shadow, result in zip(shadows, _compute(plan, part.numbers, part_slots, small), strict=True):
            put_blocks(shadow, part_blocks, result)
    for cache, shadow in zip(caches, shadows, strict=True):
        put_blocks(cache, blocks, shadow)


def _parts(plan: KernelPlan, items: Items, shadows: list[torch.Tensor]) -> Iterator[Items]:
    """Consecutive items for one launch each: a few tiles, or as few items as it takes to stay within the budget."""
    first = 0
    while first < len(items.numbers):
        part = _slice(items, first, first + TILES * plan.tile)
        while not _fits(plan, part, shadows):
            part = _slice(part, 0, len(part.numbers) // 2)
        yield part
        first += len(part.numbers)


def _slice(items: Items, first: int, stop: int) -> Items:
    return Items(items.numbers[first:stop], items.slots[first:stop], items.rows[first:stop])


def _fits(plan: KernelPlan, part: Items, shadows: list[torch.Tensor]) -> bool:
    """May this part be one launch? Raises SimulationError where even a single item needs more than the budget."""
    blocks, _ = touched_blocks(shadows[0], part.slots, part.rows, plan.sides[0].layout.block_size)
    touched = sum(_bytes(shadow) * len(blocks) // len(shadow) for shadow in shadows)
    iterations = -(-int(part.rows.sum()) // plan.tile)
    estimate = sum(map(_bytes, shadows)) + touched * COPIES * iterations
    if estimate <= memory_budget():
        return touched <= SPARSE or iterations == 1 or len(part.numbers) == 1
    if len(part.numbers) > 1:
        return False
    raise SimulationError(
        f"sim would need about {estimate / 2**30:.3g} GiB for this call and may use {memory_budget() / 2**30:.3g}: "
        f"set {MEMORY_VARIABLE} (in GiB) higher, or use smaller blocks."
    )


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def _compute(
    plan: KernelPlan, numbers: torch.Tensor, slots: torch.Tensor, caches: tuple[torch.Tensor, ...]
) -> list[torch.Tensor]:
    """Write some items of the call at ``slots`` of the small ``caches``, by the kernel; returns the new caches."""
    goldens = [take_blocks(cache, torch.arange(len(cache))) for cache in caches]
    reference(plan, numbers, slots, goldens)
    tensors = plan.part(numbers, slots, caches)
    covers = [side.layout.cover(golden) for side, golden in zip(plan.sides, goldens, strict=True)]
    bounds = mean_bounds(plan, numbers, slots, covers) if isinstance(plan, TaskPlan) else None
    results = launch(
        plan.kernel,
        "values",
        tensors,
        last_parameters(tensors, covers),
        bounds=last_parameters(tensors, bounds) if bounds else None,
    )
    return [
        result.view(-1).as_strided(cache.shape, cache.stride())
        for result, cache in zip(results.values(), caches, strict=True)
    ]


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
