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

from .blocks import bits, put_blocks, take_blocks, touched_blocks
from .errors import SimulationError
from .plans import Items, KernelPlan
from .probes import make_probe
from .reference import reference
from .runtime import Kernel
from .sim_process import WORKER
from .sim_worker import Alias, Launch, Parcel, Verdicts

MEMORY_VARIABLE = "SCATTER_PA_KV_CACHE_SIM_MEMORY"
PASSES = 36  # compiler passes of pypto 0.2.0, each compared with the tensor graph
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
        return int(float(text) * 2**30)
    except ValueError:
        raise SimulationError(f"{MEMORY_VARIABLE} is {text!r}: it must be a number of GiB, such as 4 or 0.5.") from None


def run(plan: KernelPlan) -> None:
    """Update the plan's caches in place. Raises SimulationError, the caches untouched, if any verdict is not PASS."""
    # the device skips negative slots, the interpreter cannot: padding is no item and never reaches it
    items = plan.items()
    if not len(items.numbers):
        return
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


def launch(
    kernel: Kernel,
    stage: str,
    tensors: tuple[torch.Tensor, ...],
    goldens: dict[int, torch.Tensor],
    results: int | None = None,
) -> dict[int, torch.Tensor]:
    """One gated launch of any kernel in the sim worker; returns what it leaves in the parameters of ``goldens``.

    stage: "values" or "verdicts". goldens: parameter number -> the right result. results: how many results each pass
    must have compared, where known.
    Raises SimulationError naming kernel and pass where a row is not PASS, a row is missing, or a bit is wrong.
    """
    packed = {at: Parcel.pack(golden) for at, golden in goldens.items()}
    verdicts = WORKER.run(Launch(kernel, stage, _pack(tensors), packed))
    _gate(kernel, stage, verdicts, len(goldens), results)
    computed = {}
    for number, golden in goldens.items():
        computed[number] = verdicts.values[number].unpack()
        wrong = torch.nonzero((bits(computed[number]) != bits(golden)).flatten())
        if len(wrong):
            raise SimulationError(
                f"kernel {kernel.name} leaves {len(wrong)} wrong elements in parameter {number}, the first at flat "
                f"element {int(wrong[0])}: its bits differ from golden's."
            )
    return computed


def _pack(tensors: tuple[torch.Tensor, ...]) -> tuple[Parcel | Alias, ...]:
    """Tensors of one memory are sent once and are of one memory in the worker."""
    seen: dict[tuple[int, int], int] = {}
    parcels: list[Parcel | Alias] = []
    for number, tensor in enumerate(tensors):
        first = seen.setdefault((tensor.data_ptr(), tensor.numel()), number)
        parcels.append(Parcel.pack(tensor) if first == number else Alias(first, tuple(tensor.shape)))
    return tuple(parcels)


def _gate(kernel: Kernel, stage: str, verdicts: Verdicts, outputs: int, results: int | None) -> None:
    for name, output, verdict in verdicts.failed:
        raise SimulationError(
            f"kernel {kernel.name}: {name} is {verdict} for {output} ({len(verdicts.failed)} rows are not PASS)."
        )
    passes = {name: rows for name, rows in verdicts.rows.items() if name != "tensor_graph"}
    if verdicts.rows.get("tensor_graph") != outputs or len(passes) != (PASSES if stage == "verdicts" else 0):
        raise SimulationError(
            f"kernel {kernel.name}: {len(passes)} passes and {verdicts.rows.get('tensor_graph', 0)} outputs were "
            f"compared, {PASSES if stage == 'verdicts' else 0} and {outputs} were expected."
        )
    for name, rows in passes.items():
        expected = next(iter(passes.values())) if results is None else results
        if rows != expected or rows < outputs:
            raise SimulationError(
                f"kernel {kernel.name}: {name} compared {rows} results, {expected} were expected: a write was lost."
            )


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
        f"sim would need about {estimate / 2**30:.1f} GiB for this call and may use {memory_budget() / 2**30:.1f}: "
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
    results = launch(plan.kernel, "values", tensors, last_parameters(tensors, covers))
    return [
        result.view(-1).as_strided(cache.shape, cache.stride())
        for result, cache in zip(results.values(), caches, strict=True)
    ]


def last_parameters(tensors: Sequence[torch.Tensor], goldens: list[torch.Tensor]) -> dict[int, torch.Tensor]:
    """The goldens by the numbers of the parameters that a kernel writes: its last ones."""
    return dict(enumerate(goldens, len(tensors) - len(goldens)))


def _verify(plan: KernelPlan) -> None:
    """Every compiler pass of the plan's kernel, once in this process, on a small cache."""
    if plan.kernel not in _verified:
        probe = make_probe(plan)
        launch(plan.kernel, "verdicts", probe.tensors, last_parameters(probe.tensors, probe.goldens), probe.results)
        _verified.add(plan.kernel)
