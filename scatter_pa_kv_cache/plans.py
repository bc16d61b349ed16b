"""What a plan is: a checked call, its kernel, and the tensors that a launch hands to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from . import runtime
from .arguments import Arguments
from .kernels.side import Side
from .layout import RowLayout
from .rules import Choice
from .runtime import Kernel


@dataclass(frozen=True, slots=True)
class SidePlan:
    """Key or value of a launch: what is read, where it goes, and where the rows lie.

    source: 2-D, as the kernel reads it. cache: carrier view of the caller's cache, with its shape and strides.
    """

    source: torch.Tensor
    cache: torch.Tensor
    layout: RowLayout
    side: Side


@dataclass(frozen=True)
class Plan:
    """The first stage of a call, checked and chosen; :meth:`run` is the second and may be called again.

    A run reads the tensors as they are then: a refilled ``slot_mapping`` is seen.
    """

    arguments: Arguments
    run_mode: str

    workspace_size: ClassVar[int] = 0

    def run(self) -> None:
        """Write into the caches, in place. A plan with nothing to write does nothing."""


@dataclass(frozen=True)
class Items:
    """What a plan writes, on the host: tokens or, in the compressed scenarios, tasks (one for each batch and head).

    numbers: which, ascending [N]. slots: the first slot of each. rows: how many consecutive slots it may write.
    """

    numbers: torch.Tensor
    slots: torch.Tensor
    rows: torch.Tensor

    def slice(self, first: int, stop: int) -> Items:
        return Items(self.numbers[first:stop], self.slots[first:stop], self.rows[first:stop])


@dataclass(frozen=True)
class KernelPlan(Plan):
    """A plan that launches ``kernel`` on ``sides``. tile: about how many tokens an iteration of its loop writes."""

    choice: Choice
    kernel: Kernel
    tile: int
    sides: tuple[SidePlan, ...]

    def run(self) -> None:
        runtime.launch(self)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The kernel's tensors for the whole call, made on the tensors' device without waiting for it."""
        raise NotImplementedError

    def items(self) -> Items:
        """What the call writes. Reads the index tensors."""
        raise NotImplementedError

    def part(
        self, numbers: torch.Tensor, slots: torch.Tensor, caches: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        """The kernel's tensors for some items alone, at other ``slots`` of other ``caches`` of the same strides."""
        raise NotImplementedError

    def rows_named(self, part: Items, index: torch.Tensor) -> torch.Tensor:
        """The cache rows that a part of the call writes, read off one of its index tensors: [N] int64."""
        raise NotImplementedError


def cover_pair(sides: tuple[SidePlan, ...], caches: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Each cache twice, of one memory: read as [1, R, 1, L], then written as [R, L]; the last tensors of any launch."""
    rows = [plan.layout.cover(cache) for plan, cache in zip(sides, caches, strict=True)]
    return (*(cover[None, :, None] for cover in rows), *rows)


def side_parameters(names: tuple[str, ...], sides: tuple[SidePlan, ...]) -> dict[str, Side]:
    return {f"{name}_side": plan.side for name, plan in zip(names, sides, strict=True)}


def kernel_of(choice_module: str, parameters: dict[str, object]) -> Kernel:
    """The kernel named as its golden is."""
    return Kernel(f"{__package__}.kernels.{choice_module}:{choice_module}_kernel", tuple(parameters.items()))
