"""Is a cache what golden says, bit for bit; and if not, what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .dtypes import DTYPES
from .golden import hifloat8
from .golden.slots import bits

FIELD_ATOL, FIELD_RTOL = 1e-4, 2**-7
"""What the field compares with. Here it is only reported: equal means equal bits."""

TOLERANCES: dict[str, float] = dict.fromkeys(DTYPES, 0.0) | {"float32": 2**-21}
"""By logical dtype: how far a mean of Rope may be from golden, as a part of the larger of 1 and |golden|; copies must
always be exact. The kernel adds the rows of a window in another order than golden; 16-bit results seldom show it."""


@dataclass(frozen=True, slots=True)
class Report:
    """One cache compared with golden.

    wrong: elements whose bits differ, ``first`` the index of the first one. max_difference: the largest |got - want|;
    NaN in one of the two counts as infinity. neighbours: rows (along the last axis) that golden leaves alone and that
    changed. tolerated: all wrong elements are means within the tolerance. field: the field's tolerance would pass.
    """

    elements: int
    wrong: int = 0
    first: tuple[int, ...] | None = None
    max_difference: float = 0.0
    neighbours: int = 0
    tolerated: bool = True
    field: bool = True

    @property
    def equal(self) -> bool:
        """Every bit is golden's."""
        return self.wrong == 0

    @property
    def passed(self) -> bool:
        return self.tolerated and self.neighbours == 0

    def __str__(self) -> str:
        if self.equal:
            return "bit-exact"
        if self.passed:
            return (
                f"{self.wrong} of {self.elements} elements are means that differ within the tolerance, "
                f"max abs difference {self.max_difference:g}"
            )
        return (
            f"{self.wrong} of {self.elements} elements wrong, the first at {list(self.first or ())}, "
            f"max abs difference {self.max_difference:g}, neighbours touched: {self.neighbours}, "
            f"the field's tolerance {'passes' if self.field else 'fails'}"
        )


def compare(
    got: Tensor,
    want: Tensor,
    before: Tensor,
    *,
    dtype: str | None = None,
    tolerance: float = 0.0,
    means: Tensor | None = None,
) -> Report:
    """Compare a cache with golden's, both on the CPU and of the shape and dtype that ``before``, the cache before, has.

    dtype: the logical dtype where torch's does not say it: "hifloat8" in uint8; packed 4-bit types differ by their
    bytes. tolerance: how far, in the terms of TOLERANCES, the elements may be that ``means`` marks, bool and of a shape
    that broadcasts to the cache's. Raises ValueError where shapes or dtypes differ.
    """
    for name, tensor in (("got", got), ("before", before)):
        if tensor.shape != want.shape or tensor.dtype != want.dtype:
            raise ValueError(
                f"{name} is {tensor.dtype} {list(tensor.shape)}; it must be as want, {want.dtype} {list(want.shape)}"
            )
    differs = bits(got) != bits(want)
    if not bool(differs.any()):
        return Report(want.numel())
    places = differs.nonzero()
    numbers, wanted = _numbers(got[differs], dtype), _numbers(want[differs], dtype)
    distance = (numbers - wanted).abs()
    distance[numbers.isnan() & wanted.isnan() | (numbers == wanted)] = 0.0
    distance.nan_to_num_(nan=float("inf"))
    near = torch.zeros_like(distance, dtype=torch.bool)
    if means is not None:
        near = means.expand(want.shape)[differs] & (distance <= tolerance * wanted.abs().clamp(min=1.0))
    untouched = (bits(want) == bits(before)).all(-1)
    return Report(
        elements=want.numel(),
        wrong=len(places),
        first=tuple(places[0].tolist()),
        max_difference=float(distance.max()),
        neighbours=int((untouched & differs.any(-1)).sum()),
        tolerated=bool(near.all()),
        field=bool(torch.isclose(numbers, wanted, rtol=FIELD_RTOL, atol=FIELD_ATOL, equal_nan=True).all()),
    )


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Have two tensors of one dtype the same shape and bits?"""
    return torch.equal(bits(one), bits(other))


def gaps_touched(got: Sequence[Tensor], before: Sequence[Tensor]) -> int:
    """Elements of the caches' storages that belong to none of the caches and changed.

    got, before: the caches of a call, of the same views on the same storages.
    """
    gaps: dict[int, Tensor] = {}  # storage -> [N] bool, True in the gaps
    memories: dict[int, tuple[Tensor, Tensor]] = {}
    for cache, new in zip(before, got, strict=True):
        at, old = cache.untyped_storage().data_ptr(), _memory(cache)
        memories[at] = (old, _memory(new))
        gap = gaps.setdefault(at, torch.ones(old.numel(), dtype=torch.bool))
        gap.as_strided(cache.shape, cache.stride(), int(cache.storage_offset())).fill_(False)
    return sum(int((old[gaps[at]] != new[gaps[at]]).sum()) for at, (old, new) in memories.items())


def mean_rows(inputs: dict[str, Any], dtype: str) -> Tensor | None:
    """Which rows [NB, BS, 1, 1] of the caches of a Rope call are means; None where the dtype's tolerance is 0."""
    if TOLERANCES[dtype] == 0 or inputs["scatter_mode"] != "Rope":
        return None
    slots, windows = inputs["slot_mapping"].flatten().long(), inputs["compress_lens"].flatten().long()
    offsets = inputs["compress_seq_offset"].flatten().long()
    lengths = inputs["seq_lens"].long().repeat_interleave(inputs["key"].shape[-2])
    averaged = (slots >= 0) & (offsets != -1) & (windows != 0) & (offsets != lengths)
    blocks, block_size = inputs["key_cache"].shape[:2]
    rows = torch.zeros(blocks * block_size, dtype=torch.bool)
    rows[(slots + offsets)[averaged]] = True
    return rows.view(blocks, block_size, 1, 1)


def _memory(tensor: Tensor) -> Tensor:
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    return bits(tensor).as_strided((size,), (1,), 0)


def _numbers(tensor: Tensor, dtype: str | None) -> Tensor:
    return (hifloat8.decode(tensor) if dtype == "hifloat8" else tensor).double()
