"""The row index of a step, made once and shared by all layers of one cache layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from .carriers import carrier_dtype
from .errors import InvalidParameterError
from .layout import RowLayout, row_layout

INT32_ROWS = 2**31 - 1


@dataclass(slots=True, eq=False)
class RowIndex:
    """What :func:`row_index` makes: hand it in as ``slot_mapping``.

    slot_mapping: as given. layouts, indexes [1, T*G]: of the key cache and, where there is one, of the value cache.
    """

    slot_mapping: torch.Tensor
    layouts: tuple[RowLayout, ...]
    indexes: tuple[torch.Tensor, ...]
    _fitting: tuple[RowLayout, ...] | None = field(default=None, init=False, repr=False)

    def check_fits(self, layouts: tuple[RowLayout, ...]) -> None:
        """Raises InvalidParameterError where this was made for caches of other layouts."""
        if layouts is self._fitting:  # one object for all layers of a model
            return
        if len(layouts) != len(self.layouts) or not all(map(RowLayout.same_rows, layouts, self.layouts)):
            raise InvalidParameterError(
                "slot_mapping is a RowIndex that was made for caches of another layout; it must be made for caches of "
                "the same block size, groups and strides as key_cache and value_cache"
            )
        self._fitting = layouts


def row_index(
    slot_mapping: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor | None = None,
    *,
    cache_mode: str = "Norm",
    scatter_mode: str = "None",
) -> RowIndex:
    """Where each token's rows go, for all layers whose caches are laid out as these.

    slot_mapping: [T] int32 or int64. key_cache, value_cache: as in ``scatter_pa_kv_cache``; their shapes and strides
    count, not their content.
    The index is made by a few torch operations on the tensors' device, without waiting for it, of the slots as they
    are now. Pass the result as ``slot_mapping`` to ``scatter_pa_kv_cache`` or ``plan``; compressed calls take none.
    Raises TilingError where rows cannot express a cache's strides.
    """
    axes = cache_axes(cache_mode, scatter_mode, key_cache)
    caches = [cache for cache in (key_cache, value_cache) if cache is not None and cache.dim()]
    layouts = tuple(
        row_layout(f"{name}_cache", axes, cache.view(carrier_dtype(cache, cache)))
        for name, cache in zip(("key", "value"), caches, strict=False)
    )
    return RowIndex(slot_mapping, layouts, indexes_of(layouts, slot_mapping))


def cache_axes(cache_mode: str, scatter_mode: str, cache: torch.Tensor) -> str:
    """Which axes of ``cache`` are blocks, slots and groups: a key of ``layout.AXES``."""
    if cache_mode == "PA_NZ":
        return f"PA_NZ {cache.dim()}-D"
    return "NHSD" if scatter_mode == "NHSD" else "Norm"


def index_dtype(layouts: Sequence[RowLayout], slots: torch.dtype) -> torch.dtype:
    """int64 where the slots are or a row number needs it, else int32."""
    for layout in layouts:
        if layout.num_rows > INT32_ROWS:
            return torch.int64
    return slots


def indexes_of(layouts: Sequence[RowLayout], slots: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The row index of each layout, one tensor where one serves both."""
    dtype = index_dtype(layouts, slots.dtype)
    if slots.dtype is not dtype:
        slots = slots.to(dtype)
    first = layouts[0].index(slots)
    if len(layouts) == 1:
        return (first,)
    return first, first if layouts[1].same_rows(layouts[0]) else layouts[1].index(slots)
