"""Scenario 7: token rows into an NHSD cache, heads before slots (the operator's specification, section 4.8)."""

from __future__ import annotations

from torch import Tensor

from .slots import bits, live_tokens


def reference(key: Tensor, key_cache: Tensor, slot_mapping: Tensor, value: Tensor, value_cache: Tensor) -> None:
    """Update both caches in place: ``cache[slot // BS, h, slot % BS] = source[token, h]`` for every head h.

    key [T, H, Dk], value [T, H, Dv] of any dtype; key_cache [NB, H, BS, Dk], value_cache [NB, H, BS, Dv];
    slot_mapping [T] int32 or int64. Slots outside 0 .. NB*BS-1 are skipped.
    """
    _scatter(key, key_cache, slot_mapping)
    _scatter(value, value_cache, slot_mapping)


def _scatter(source: Tensor, cache: Tensor, slot_mapping: Tensor) -> None:
    num_blocks, _, block_size, _ = cache.shape
    tokens, slots = live_tokens(slot_mapping, num_blocks * block_size)
    bits(cache)[slots // block_size, :, slots % block_size] = bits(source)[tokens]
