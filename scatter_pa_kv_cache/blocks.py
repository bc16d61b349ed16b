"""Some blocks of a cache as a small cache of the same strides: what one sim launch works on."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .golden.slots import bits
from .layout import memory_span


def touched_blocks(
    caches: Sequence[torch.Tensor], slots: torch.Tensor, rows: torch.Tensor, block_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The blocks that runs of ``rows`` [N] slots from ``slots`` [N] on lie in, ascending, and the slots counted in
    those blocks alone.

    caches: alike in their slots. Neighbouring blocks stay neighbours, so a run stays a run. All blocks, where they are
    not the outermost axis of each cache in memory.
    """
    num_blocks = caches[0].shape[0]
    if not all(map(_blocks_outermost, caches)):
        return torch.arange(num_blocks), slots
    first = slots // block_size
    last = (slots + rows - 1) // block_size
    marked = torch.zeros(num_blocks + 1, dtype=torch.int32)
    marked.index_add_(0, first.long(), torch.ones_like(first, dtype=torch.int32))
    marked.index_add_(0, last.long() + 1, torch.full_like(last, -1, dtype=torch.int32))
    touched = marked[:-1].cumsum(0) > 0
    number = touched.cumsum(0) - 1
    small = number[first.long()] * block_size + slots % block_size
    return torch.nonzero(touched).flatten(), small.to(slots.dtype)


def take_blocks(cache: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """A copy of ``blocks`` of ``cache`` [NB, ...] in new memory, with the strides and the gaps of the original."""
    block_stride, *inner_strides = cache.stride()
    if not _blocks_outermost(cache):
        small = cache.new_zeros(memory_span(cache)).as_strided(cache.shape, cache.stride())
        bits(small).copy_(bits(cache))
        return small
    extent = memory_span(cache[0])
    block_stride = max(block_stride, extent)
    small = cache.new_zeros(len(blocks) * block_stride)
    memory = bits(cache).as_strided((cache.shape[0], extent), (cache.stride(0), 1))
    bits(small).view(len(blocks), block_stride)[:, :extent] = memory[blocks]
    return small.as_strided((len(blocks), *cache.shape[1:]), (block_stride, *inner_strides))


def put_blocks(cache: torch.Tensor, blocks: torch.Tensor, small: torch.Tensor) -> None:
    """Copy the elements of ``small`` back to ``blocks`` of ``cache``; the gaps of ``cache`` keep their bits."""
    bits(cache)[blocks] = bits(small)


def _blocks_outermost(cache: torch.Tensor) -> bool:
    return cache.shape[0] == 1 or cache.stride(0) >= memory_span(cache[0])
