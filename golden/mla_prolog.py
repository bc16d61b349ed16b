"""MLA prolog: the rows of new tokens in the caches of a compressed KV, quantised or not."""

from __future__ import annotations

from torch import Tensor

from .slots import bits, live_tokens
from .stages import quantise_groups, rms_norm, rotate_pairs_apart

EPSILON = 1e-5


def reference(
    kv: Tensor,
    gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    slot_mapping: Tensor,
    rope_cache: Tensor,
    nope_cache: Tensor,
    scale_cache: Tensor | None = None,
) -> None:
    """Update the caches in place, all by the same slots.

    kv: [T, nope + R] bf16; gamma: [nope] bf16; cos, sin: [T, R] bf16; slot_mapping: [T] integers, negative for padding.
    rope_cache: [NB, BS, 1, R] bf16. nope_cache: [NB, BS, 1, nope] int8 with scale_cache [NB, BS, 1, groups] fp32; or
    bf16, without.
    """
    nope = len(gamma)
    normed = rms_norm(kv[:, :nope].float(), gamma, EPSILON)
    written = [(rope_cache, rotate_pairs_apart(kv[:, nope:], cos, sin))]
    if scale_cache is None:
        written.append((nope_cache, normed))
    else:
        quantised, scales = quantise_groups(normed, scale_cache.shape[-1])
        written += [(nope_cache, quantised), (scale_cache, scales)]
    for cache, rows in written:
        tokens, slots = live_tokens(slot_mapping, cache.shape[0] * cache.shape[1])
        bits(cache).view(-1, rows.shape[-1])[slots] = bits(rows)[tokens]
