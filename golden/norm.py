"""Scenario 2, plain: token rows into a Norm cache (the operator's specification, section 4.2)."""

from __future__ import annotations

from torch import Tensor

from .slots import bits, live_tokens


def reference(key: Tensor, key_cache: Tensor, slot_mapping: Tensor, value: Tensor, value_cache: Tensor) -> None:
    """Update both caches in place: ``cache[slot // BS, slot % BS] = source[token]``.

    key [T, H, Dk], value [T, H, Dv] of any dtype; key_cache [NB, BS, H, Dk], value_cache [NB, BS, H, Dv] of the same
    dtype and of any strides; slot_mapping [T] int32 or int64. Slots outside 0 .. NB*BS-1 are skipped.
    """
    scatter(key, key_cache, slot_mapping)
    scatter(value, value_cache, slot_mapping)


def scatter(source: Tensor, cache: Tensor, slot_mapping: Tensor) -> None:
    """One side of :func:`reference`: source [T, H, D] into cache [NB, BS, H, D]."""
    num_blocks, block_size = cache.shape[:2]
    tokens, slots = live_tokens(slot_mapping, num_blocks * block_size)
    bits(cache)[slots // block_size, slots % block_size] = bits(source)[tokens]
