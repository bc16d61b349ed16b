"""Scenario 2, Nct: token rows read at a stride from a fused buffer (the operator's specification, section 4.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from .slots import bits, live_tokens


def reference(
    key: Tensor,
    key_cache: Tensor,
    slot_mapping: Tensor,
    value: Tensor,
    value_cache: Tensor,
    *,
    strides: tuple[int, int],
    offsets: tuple[int, int],
) -> None:
    """Update both caches in place; token i is read from element ``i * stride + offset`` of its buffer.

    Shapes and dtypes as in ``norm``. ``strides`` and ``offsets`` are (key, value) pairs in elements, counted from the
    tensor's own first element; its shape gives only T, H and D, its own strides play no part, and the memory may
    reach beyond the tensor. Raises IndexError when a token that is not skipped lies outside the storage.
    """
    scatter(key, key_cache, slot_mapping, strides[0], offsets[0])
    scatter(value, value_cache, slot_mapping, strides[1], offsets[1])


def scatter(source: Tensor, cache: Tensor, slot_mapping: Tensor, stride: int, offset: int) -> None:
    """One side of :func:`reference`: source [T, H, D] and the memory behind it into cache [NB, BS, H, D]."""
    num_blocks, block_size = cache.shape[:2]
    _, heads, head_size = source.shape
    tokens, slots = live_tokens(slot_mapping, num_blocks * block_size)
    first = tokens * stride + offset
    elements = first[:, None, None] + torch.arange(heads * head_size, device=first.device).reshape(heads, head_size)
    bits(cache)[slots // block_size, slots % block_size] = _buffer(source)[elements]


def _buffer(source: Tensor) -> Tensor:
    # [N], from the tensor's first element to the end of its storage
    origin = source.storage_offset()
    size = source.untyped_storage().nbytes() // source.element_size() - origin
    return torch.as_strided(bits(source), (size,), (1,), origin)
