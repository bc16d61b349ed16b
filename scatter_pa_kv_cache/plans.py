"""What a plan is: a checked call, its kernel, and the tensors that a launch hands to it.

All that depends on shapes alone is in a template, made once for calls of one signature; a plan binds tensors to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar, NamedTuple

import torch

from . import runtime
from .arguments import Arguments
from .carriers import SourceView
from .indexing import RowIndex
from .kernels.side import Side
from .layout import RowLayout
from .rules import Choice
from .runtime import Kernel


@dataclass(frozen=True, slots=True)
class SideTemplate:
    """Key or value of the calls of one signature: which argument, the dtype it is seen as, and where its rows lie."""

    name: str
    carrier: torch.dtype
    view: SourceView
    layout: RowLayout
    side: Side

    def bind(self, arguments: Arguments) -> SidePlan:
        key = self.name == "key"
        given = arguments.key if key else arguments.value
        cache = arguments.key_cache if key else arguments.value_cache
        assert given is not None
        assert cache is not None
        if cache.dtype is not self.carrier:
            given, cache = given.view(self.carrier), cache.view(self.carrier)
        return SidePlan(given, cache, self.view, self.layout, self.side)


class SidePlan(NamedTuple):
    """Key or value of a launch. given, cache: carrier views of the caller's tensors, with their shapes and strides."""

    given: torch.Tensor
    cache: torch.Tensor
    view: SourceView
    layout: RowLayout
    side: Side

    @property
    def source(self) -> torch.Tensor:
        """What the kernel reads, 2-D, as it is now."""
        return self.view.of(self.given)


@dataclass(eq=False)
class Plan:
    """The first stage of a call, checked and chosen; :meth:`run` is the second and may be called again.

    A run reads the tensors as they are then: a refilled ``slot_mapping`` is seen. A plan is not to be changed.
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


@dataclass(eq=False)
class KernelPlan(Plan, ABC):
    """A plan that launches ``kernel`` on ``sides``. tile: about how many tokens an iteration of its loop writes.

    covers: the :func:`pairs` of the caches. views: are the launch's tensors all views of the call's, so that every run
    hands over the same? shared: the row index that was handed in as slot_mapping, if one was.
    """

    choice: Choice
    kernel: Kernel
    tile: int
    sides: tuple[SidePlan, ...]
    covers: tuple[torch.Tensor, ...]
    views: bool = False
    shared: RowIndex | None = None

    def run(self) -> None:
        runtime.launch(self)

    def covers_of(self, caches: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """The :func:`pairs` of other caches of the same strides."""
        return pairs([side.layout.cover(cache) for side, cache in zip(self.sides, caches, strict=True)])

    @property
    def caches(self) -> tuple[torch.Tensor, ...]:
        return tuple(side.cache for side in self.sides)

    @abstractmethod
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The kernel's tensors for the whole call, made on the tensors' device without waiting for it."""

    @abstractmethod
    def items(self) -> Items:
        """What the call writes. Reads the index tensors."""

    @abstractmethod
    def part(
        self, numbers: torch.Tensor, slots: torch.Tensor, caches: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        """The kernel's tensors for some items alone, at other ``slots`` of other ``caches`` of the same strides."""

    @abstractmethod
    def rows_named(self, part: Items, index: torch.Tensor) -> torch.Tensor:
        """The cache rows that a part of the call writes, read off one of its index tensors: [N] int64."""


@dataclass(frozen=True, slots=True)
class Template:
    """A plan without its tensors. views: as in KernelPlan, with the slots or with a shared row index.

    layouts: of the sides.
    """

    kind: type[KernelPlan]
    choice: Choice
    kernel: Kernel
    tile: int
    sides: tuple[SideTemplate, ...]
    views: tuple[bool, bool] = (False, False)
    layouts: tuple[RowLayout, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layouts", tuple(side.layout for side in self.sides))

    def bind(self, arguments: Arguments, run_mode: str, shared: RowIndex | None) -> KernelPlan:
        """The plan of a call of this template's signature. Raises InvalidParameterError if ``shared`` does not fit."""
        if shared is not None:
            shared.check_fits(self.layouts)
        sides, covers = [], []
        for template in self.sides:  # a loop, for this is part of every call
            side = template.bind(arguments)
            sides.append(side)
            covers.append(side.layout.cover(side.cache, side.layout.num_rows))
        views = self.views[shared is not None]
        return self.kind(
            arguments, run_mode, self.choice, self.kernel, self.tile, tuple(sides), pairs(covers), views, shared
        )


def pairs(covers: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Each cache twice, of one memory: read as [1, R, 1, L], then written as [R, L]; the last tensors of any launch."""
    return (*[cover.view(1, -1, 1, cover.shape[1]) for cover in covers], *covers)


def kernel_of(module: str, sides: tuple[SideTemplate, ...], parameters: dict[str, object]) -> Kernel:
    """The kernel of that name, which is its golden's too, for these sides."""
    named = {f"{side.name}_side": side.side for side in sides}
    return _first_equal(Kernel(f"{__package__}.kernels.{module}:{module}_kernel", tuple((named | parameters).items())))


@cache
def _first_equal(kernel: Kernel) -> Kernel:
    """One object for all that are equal: a launch looks it up, and need not compare."""
    return kernel
