"""torch_npu's cache writes (section 9 of the operator's specification)."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from ..api import scatter_pa_kv_cache
from ..errors import TilingError

FRACTAL_NZ = 29  # the format tag of torch_npu


def npu_scatter_pa_kv_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    compress_lens: Tensor | None = None,
    compress_seq_offsets: Tensor | None = None,
    seq_lens: Tensor | None = None,
    cache_mode: str | None = "PA_NZ",
) -> None:
    """``torch_npu.npu_scatter_pa_kv_cache``: :func:`scatter_pa_kv_cache` without scatter modes, in place.

    The value comes second, and ``cache_mode`` is "PA_NZ" where it is left out: caches [NB, BS, H, D] need "Norm" (or
    None). PA_NZ caches are views of rank 4 or 5. Tensors may be strided, slots int32 or int64.
    """
    try:
        scatter_pa_kv_cache(
            key,
            key_cache,
            slot_mapping,
            value,
            value_cache,
            compress_lens=compress_lens,
            compress_seq_offset=compress_seq_offsets,
            seq_lens=seq_lens,
            cache_mode=cache_mode,
        )
    except TilingError as error:
        if cache_mode == "PA_NZ" and _is_norm(key, key_cache):
            message = f"{error.args[0]}. key_cache looks like [NB, BS, H, D]: pass cache_mode='Norm' for it"
            raise TilingError(message, error.rule) from None
        raise


def npu_scatter_pa_kv_cache_functional(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    compress_lens: Tensor | None = None,
    compress_seq_offsets: Tensor | None = None,
    seq_lens: Tensor | None = None,
    cache_mode: str | None = "PA_NZ",
) -> tuple[Tensor, Tensor]:
    """The same on dense clones of the caches, returned as (key_cache, value_cache); the caches themselves stay."""
    key_clone, value_clone = (cache.clone(memory_format=torch.contiguous_format) for cache in (key_cache, value_cache))
    npu_scatter_pa_kv_cache(
        key,
        value,
        key_clone,
        value_clone,
        slot_mapping,
        compress_lens=compress_lens,
        compress_seq_offsets=compress_seq_offsets,
        seq_lens=seq_lens,
        cache_mode=cache_mode,
    )
    return key_clone, value_clone


def _npu_reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_indices: Tensor
) -> None:
    """``torch_npu._npu_reshape_and_cache``, in place: key [T, H, Dk], value [T, H, Dv], slot_indices [T].

    The caches are PA_NZ where both carry the NPU format FRACTAL_NZ, else [NB, BS, H, D]. Tensors that carry no format,
    as on a CPU, are PA_NZ where their shape is not [NB, BS, H, D] but that of a PA_NZ view. No slots: nothing to do.
    """
    nz = _both_nz(key, key_cache, value_cache)
    scatter_pa_kv_cache(key, key_cache, slot_indices, value, value_cache, cache_mode="PA_NZ" if nz else "Norm")


def _npu_reshape_and_cache_siso(key: Tensor, key_cache: Tensor, slot_indices: Tensor) -> None:
    """``torch_npu._npu_reshape_and_cache_siso``, in place: keys alone, [T, H, D] into [NB, BS, H, D]."""
    scatter_pa_kv_cache(key, key_cache, slot_indices)


def _is_norm(key: Tensor, cache: Tensor) -> bool:
    return cache.dim() == 4 and key.dim() == 3 and cache.shape[2:] == key.shape[1:]


def _both_nz(key: Tensor, key_cache: Tensor, value_cache: Tensor) -> bool:
    if key_cache.device.type == "npu":
        tag = sys.modules["torch_npu"].get_npu_format
        return all(tag(cache) == FRACTAL_NZ for cache in (key_cache, value_cache))
    lanes = all(cache.shape[-1] * cache.element_size() == 32 for cache in (key_cache, value_cache))
    return lanes and not _is_norm(key, key_cache)
