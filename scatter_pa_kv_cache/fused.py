"""Run the fused kernels of patterns/ on the inputs of a config, and say how close they come to golden."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from .configs_fused import FusedConfig
from .errors import SimulationError
from .fused_inputs import BUILDERS, Launch, Output
from .golden.slots import bits

__all__ = ["Closeness", "FusedResult", "Launch", "Output", "launches", "run"]


class Closeness(NamedTuple):
    """How one output compares with golden: elements that differ, and the largest difference, also as a part of what is
    allowed there (0 where only equal bits are).
    """

    name: str
    elements: int
    differ: int
    largest: float
    share: float

    def __str__(self) -> str:
        if not self.differ:
            return f"{self.name} bit-exact"
        return f"{self.name} {self.differ} of {self.elements} differ, by {self.largest:g} at most, {self.share:.0%}"


@dataclass
class FusedResult:
    """closeness of every output of all launches, in their order; values: what the kernels left, by the same names."""

    closeness: list[Closeness] = field(default_factory=list)
    values: dict[str, Tensor] = field(default_factory=dict)


def launches(config: FusedConfig, seed: int = 0) -> Iterator[Launch]:
    """The launches of a config, each made as if the ones before left what golden says."""
    steps = BUILDERS[config.pattern](config, seed)
    step = next(steps, None)
    while step is not None:
        yield step
        try:
            step = steps.send({output.name: output.golden for output in step.outputs.values()})
        except StopIteration:
            return


def run(config: FusedConfig, run_mode: str = "sim", seed: int = 0, device: str = "cpu") -> FusedResult:
    """Launch the kernels of a config one after the other, each on what the one before left, and judge every output.

    In sim every compiler pass of every launch must be PASS. Raises SimulationError where an output is further from
    golden than it may be, or a row changed that is not to be written.
    """
    result = FusedResult()
    steps = BUILDERS[config.pattern](config, seed)
    step = next(steps)
    while True:
        values = _sim(step) if run_mode == "sim" else _npu(step, device)
        for number, output in step.outputs.items():
            result.closeness.append(judge(step, output, values[number], run_mode))
            result.values[output.name] = values[number]
        try:
            step = steps.send({output.name: values[number] for number, output in step.outputs.items()})
        except StopIteration:
            return result


def _sim(step: Launch) -> Mapping[int, Tensor]:
    from .gate import launch

    goldens = {number: output.golden for number, output in step.outputs.items()}
    bounds = {number: output.bound("sim") for number, output in step.outputs.items() if not output.exact}
    return launch(step.kernel, "verdicts", step.tensors, goldens, bounds=bounds)


def _npu(step: Launch, device: str) -> Mapping[int, Tensor]:
    """Written for real use; never run by this project."""
    moved = to_device(step.tensors, device)
    step.kernel.build("npu")(*moved)
    return {number: moved[number].cpu() for number in step.outputs}


def to_device(tensors: Sequence[Tensor], device: str) -> list[Tensor]:
    """The tensors on a device; those of one memory are of one memory there too."""
    memories: dict[int, Tensor] = {}
    return [memories.setdefault(tensor.data_ptr(), tensor.to(device)).view(tensor.shape) for tensor in tensors]


def judge(step: Launch, output: Output, got: Tensor, run_mode: str = "sim") -> Closeness:
    """Compare what a launch left with golden. Raises SimulationError where it is not close enough."""
    differs = bits(got) != bits(output.golden)
    bound = output.bound(run_mode)
    distance = torch.where(differs, (got.double() - output.golden.double()).abs(), 0.0).nan_to_num(nan=torch.inf)
    wrong = differs & ((distance > bound) | (bound == 0))
    if wrong.any():
        raise SimulationError(
            f"kernel {step.kernel.name} leaves {int(wrong.sum())} wrong elements of {output.name}, the first at "
            f"{torch.nonzero(wrong)[0].tolist()}."
        )
    share = torch.where(bound > 0, distance / bound, 0.0)
    return Closeness(
        name=output.name,
        elements=got.numel(),
        differ=int(differs.sum()),
        largest=float(distance.max()) if got.numel() else 0.0,
        share=float(share.max()) if got.numel() else 0.0,
    )
