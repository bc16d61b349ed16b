"""Scenario 1: token rows into a PA_NZ cache of 32-byte pieces (the operator's specification, section 4.1)."""

from __future__ import annotations

from torch import Tensor

from .slots import bits, live_tokens


def reference(key: Tensor, key_cache: Tensor, slot_mapping: Tensor, value: Tensor, value_cache: Tensor) -> None:
    """Update both caches in place: element f = h*D + d of a token goes to ``cache[block, f // L, place, f % L]``.

    key [T, H, Dk], value [T, H, Dv]; the caches [NB, H*D/L, BS, L] or [NB, H, D/L, BS, L] (the same memory), L elements
    being 32 bytes; key and value may differ in dtype and so in L. slot_mapping [T] int32 or int64; slots outside
    0 .. NB*BS-1 are skipped.
    """
    _scatter(key, key_cache, slot_mapping)
    _scatter(value, value_cache, slot_mapping)


def _scatter(source: Tensor, cache: Tensor, slot_mapping: Tensor) -> None:
    num_blocks, block_size = cache.shape[0], cache.shape[-2]
    tokens, slots = live_tokens(slot_mapping, num_blocks * block_size)
    by_slot = bits(cache).movedim(-2, 1)  # [NB, BS, H*D/L, L] or [NB, BS, H, D/L, L]
    rows = bits(source)[tokens].reshape(len(tokens), *by_slot.shape[2:])
    by_slot[slots // block_size, slots % block_size] = rows
