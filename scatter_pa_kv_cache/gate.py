"""One launch of any kernel in the sim worker, and the gate that its results must pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from .errors import SimulationError
from .golden.slots import bits
from .runtime import Kernel
from .sim_process import WORKER
from .sim_worker import Alias, Launch, Parcel, Verdicts

PASSES = 36  # compiler passes of pypto 0.2.0, each compared with the tensor graph


def launch(
    kernel: Kernel,
    stage: str,
    tensors: Sequence[torch.Tensor],
    goldens: Mapping[int, torch.Tensor],
    *,
    bounds: Mapping[int, torch.Tensor] | None = None,
    results: int | None = None,
) -> dict[int, torch.Tensor]:
    """Run one kernel on CPU tensors and return what it leaves in the parameters of ``goldens``; ``tensors`` stay.

    stage: "values" or, with every compiler pass compared at zero tolerance, "verdicts".
    goldens: parameter number -> the right result, compared bit for bit.
    bounds: parameter number -> how far each element may be from golden instead, of its shape.
    results: how many results each pass must have compared, where known.
    Raises SimulationError naming kernel and pass where a row is not PASS, a row is missing, or an element is wrong;
    ValueError where a tensor is not contiguous.
    """
    bounds = bounds or {}
    packed = {number: Parcel.pack(golden) for number, golden in goldens.items()}
    verdicts = WORKER.run(Launch(kernel, stage, _pack(tensors), packed))
    _check_rows(kernel, stage, verdicts, goldens, bounds, results)
    computed = {number: verdicts.values[number].unpack() for number in goldens}
    for number, golden in goldens.items():
        _check_values(kernel, number, computed[number], golden, bounds.get(number))
    return computed


def _pack(tensors: Sequence[torch.Tensor]) -> tuple[Parcel | Alias, ...]:
    """Tensors of one memory are sent once and are of one memory in the worker."""
    seen: dict[tuple[int, int, torch.dtype], int] = {}
    parcels: list[Parcel | Alias] = []
    for number, tensor in enumerate(tensors):
        if not tensor.is_contiguous():
            raise ValueError(f"tensor {number} has strides {tensor.stride()}; PyPTO takes contiguous tensors only")
        first = seen.setdefault((tensor.data_ptr(), tensor.numel(), tensor.dtype), number)
        parcels.append(Parcel.pack(tensor) if first == number else Alias(first, tuple(tensor.shape)))
    return tuple(parcels)


def _check_rows(
    kernel: Kernel,
    stage: str,
    verdicts: Verdicts,
    goldens: Mapping[int, torch.Tensor],
    bounds: Mapping[int, torch.Tensor],
    results: int | None,
) -> None:
    bounded = {("tensor_graph", f"output{number}") for number in bounds}  # judged by their values instead
    failed = [(name, output, verdict) for name, output, verdict in verdicts.failed if (name, output) not in bounded]
    for name, output, verdict in failed:
        raise SimulationError(
            f"kernel {kernel.name}: {name} is {verdict} for {output}; {len(failed)} rows are not PASS."
        )
    rows = dict(verdicts.rows)
    compared, expected = rows.pop("tensor_graph", 0), PASSES if stage == "verdicts" else 0
    if compared != len(goldens) or len(rows) != expected:
        raise SimulationError(
            f"kernel {kernel.name}: {len(rows)} passes and {compared} outputs were compared, {expected} and "
            f"{len(goldens)} were expected."
        )
    for name, count in rows.items():
        expected = results if results is not None else max(len(goldens), *rows.values())
        if count != expected:
            raise SimulationError(
                f"kernel {kernel.name}: {name} compared {count} results, {expected} were expected: a write was lost."
            )


def _check_values(
    kernel: Kernel, number: int, got: torch.Tensor, golden: torch.Tensor, bound: torch.Tensor | None
) -> None:
    wrong = bits(got) != bits(golden)
    if bound is not None:
        near = golden.isfinite() & ((got.float() - golden.float()).abs() <= bound)
        wrong &= (bound == 0) | ~(near | (got.isnan() & golden.isnan()))
    if wrong.any():
        first = torch.nonzero(wrong.flatten())[0]
        raise SimulationError(
            f"kernel {kernel.name} leaves {int(wrong.sum())} wrong elements in parameter {number}, the first at flat "
            f"element {int(first)}: it differs from golden."
        )
