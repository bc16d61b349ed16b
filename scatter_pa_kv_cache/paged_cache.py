"""A cache for transformers models in pages: this operator writes it, a block gather reads it. Needs transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.cache_utils import Cache, CacheLayerMixin

from .api import scatter_pa_kv_cache
from .indexing import RowIndex, row_index
from .slots import PADDING, slots_from_block_table


class BlockPool:
    """The paged caches of a model's layers, [NB, BS, H, D] each, and which of their blocks are free.

    Every element begins as NaN, so that reading one that was never written shows.
    """

    def __init__(self, *, layers: int, blocks: int, block_size: int, heads: int, head_size: int, dtype: torch.dtype):
        shape = (blocks, block_size, heads, head_size)
        self.keys = [torch.full(shape, torch.nan, dtype=dtype) for _ in range(layers)]
        self.values = [torch.full(shape, torch.nan, dtype=dtype) for _ in range(layers)]
        self.block_size = block_size
        self.free = list(reversed(range(blocks)))

    def take(self) -> int:
        """The block that was given back last. Raises MemoryError where none is free."""
        if not self.free:
            raise MemoryError(f"all {len(self.keys[0])} blocks of the pool are in use")
        return self.free.pop()


class PagedCache(Cache):
    """The cache of a batch whose sequences are padded on the left, as ``DynamicCache`` is, in blocks of a pool.

    padding: how many padded tokens each sequence begins with; they get slot -1 and are never stored.
    """

    def __init__(self, pool: BlockPool, padding: Sequence[int]) -> None:
        super().__init__(layers=[PagedLayer(self, number) for number in range(len(pool.keys))])
        self.pool = pool
        self.padding = list(padding)
        self.blocks: list[list[int]] = [[] for _ in padding]
        self.index: RowIndex | None = None

    def extend(self, seen: int, new: int) -> RowIndex:
        """Take blocks for ``new`` more tokens of each sequence after ``seen`` ones; the row index of their slots."""
        size = self.pool.block_size
        for blocks, padding in zip(self.blocks, self.padding, strict=True):
            while len(blocks) * size < seen + new - padding:
                blocks.append(self.pool.take())
        width = max(map(len, self.blocks))
        table = torch.tensor([blocks + [PADDING] * (width - len(blocks)) for blocks in self.blocks], dtype=torch.int32)
        positions = torch.arange(seen, seen + new) - torch.tensor(self.padding)[:, None]  # [B, new]
        sequences = torch.arange(len(self.blocks))[:, None].expand_as(positions)
        slots = slots_from_block_table(table, positions.flatten(), size, sequences.flatten())
        self.index = row_index(slots, self.pool.keys[0], self.pool.values[0])
        return self.index

    def gather(self, cache: Tensor, length: int) -> Tensor:
        """The first ``length`` tokens of each sequence as attention wants them: [B, H, length, D], padding as zeros."""
        rows = []
        for blocks, padding in zip(self.blocks, self.padding, strict=True):
            tokens = cache[blocks].flatten(0, 1)[: max(length - padding, 0)]
            rows.append(functional.pad(tokens, (0, 0, 0, 0, length - len(tokens), 0)))
        return torch.stack(rows).transpose(1, 2).contiguous()

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the sequences that ``indices`` [n] names; the blocks of the others are free again, as they are."""
        kept = indices.tolist()
        for sequence, blocks in enumerate(self.blocks):
            if sequence not in kept:
                self.pool.free.extend(reversed(blocks))
        self.blocks = [self.blocks[sequence] for sequence in kept]
        self.padding = [self.padding[sequence] for sequence in kept]


class PagedLayer(CacheLayerMixin):
    """One layer of a :class:`PagedCache`. The first one makes the row index of a step, and all use it."""

    def __init__(self, cache: PagedCache, number: int) -> None:
        super().__init__()
        self.cache, self.number, self.length = cache, number, 0
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """The pool is there from the start."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the new tokens [B, H, S, D] and return all of the batch, [B, H, length, D]."""
        cache, new = self.cache, key_states.shape[2]
        index = cache.extend(self.length, new) if self.number == 0 else cache.index
        assert index is not None
        key_cache, value_cache = cache.pool.keys[self.number], cache.pool.values[self.number]
        key, value = (states.transpose(1, 2).flatten(0, 1) for states in (key_states, value_states))  # [B*S, H, D]
        scatter_pa_kv_cache(key, key_cache, index, value, value_cache)
        self.length += new
        return cache.gather(key_cache, self.length), cache.gather(value_cache, self.length)

    def get_seq_length(self) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_max_length(self) -> int:
        return -1
