"""vLLM's cache writes. The number of tokens is slot_mapping's; keys and values may be longer, as graphs pad them."""

from __future__ import annotations

from torch import Tensor

from ..api import scatter_pa_kv_cache
from ..errors import InvalidParameterError


def reshape_and_cache_flash(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    kv_cache_dtype: str,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> None:
    """Write the first T tokens of key and value, in place.

    key [>= T, H, Dk], value [>= T, H, Dv]: of any strides. key_cache, value_cache: [NB, BS, H, D], dense or views of
    HND memory. slot_mapping: [T] int64 or int32, negative for padding. kv_cache_dtype: "auto", which copies bits; the
    scales are then unused.

    Raises InvalidParameterError for another ``kv_cache_dtype`` and for fewer tokens than slots, and what
    ``scatter_pa_kv_cache`` raises: a cache of another dtype than its source is refused.
    """
    _copies_only(kv_cache_dtype)
    tokens = _slots(slot_mapping)
    key, value = _first("key", key, tokens), _first("value", value, tokens)
    scatter_pa_kv_cache(key, key_cache, slot_mapping, value, value_cache)


def concat_and_cache_mla(
    kv_c: Tensor, k_pe: Tensor, kv_cache: Tensor, slot_mapping: Tensor, kv_cache_dtype: str, scale: Tensor | None
) -> None:
    """Write the latents and the rotary keys of the first T tokens side by side, in place and without concatenation.

    kv_c: [>= T, R]. k_pe: [>= T, P]. kv_cache: [NB, BS, R + P]. slot_mapping, kv_cache_dtype and errors as for
    :func:`reshape_and_cache_flash`.
    """
    _copies_only(kv_cache_dtype)
    for name, tensor, form in (("kv_c", kv_c, "[T, R]"), ("k_pe", k_pe, "[T, P]")):
        if tensor.dim() != 2:
            raise InvalidParameterError(f"{name} has shape {list(tensor.shape)}; it must have rank 2, {form}")
    rank, width = kv_c.shape[1], kv_c.shape[1] + k_pe.shape[1]
    if kv_cache.dim() != 3 or kv_cache.shape[2] != width:
        raise InvalidParameterError(
            f"kv_cache has shape {list(kv_cache.shape)}; with kv_c of {rank} and k_pe of {width - rank} it must be "
            f"[NB, BS, {width}]"
        )
    tokens = _slots(slot_mapping)
    latents, rotary = _first("kv_c", kv_c, tokens), _first("k_pe", k_pe, tokens)
    rows = kv_cache.unsqueeze(2)
    scatter_pa_kv_cache(latents.unsqueeze(1), rows[..., :rank], slot_mapping, rotary.unsqueeze(1), rows[..., rank:])


def _copies_only(kv_cache_dtype: str) -> None:
    if kv_cache_dtype != "auto":
        raise InvalidParameterError(
            f"kv_cache_dtype is {kv_cache_dtype!r}; it must be 'auto': keys and values are copied, not quantised"
        )


def _slots(slot_mapping: Tensor) -> int:
    if slot_mapping.dim() != 1:
        raise InvalidParameterError(f"slot_mapping has shape {list(slot_mapping.shape)}; it must have rank 1, [T]")
    return slot_mapping.shape[0]


def _first(name: str, tensor: Tensor, tokens: int) -> Tensor:
    if tensor.dim() and tensor.shape[0] < tokens:
        raise InvalidParameterError(
            f"{name} has {tensor.shape[0]} tokens and slot_mapping {tokens} slots; {name} must have at least as many"
        )
    return tensor[:tokens]
