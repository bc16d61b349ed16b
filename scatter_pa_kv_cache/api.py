"""The public calls: plan a paged-cache write, or plan it and run it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .indexing import RowIndex
from .planning import make_plan
from .plans import Plan


def plan(
    key: Tensor,
    key_cache: Tensor,
    slot_mapping: Tensor | RowIndex,
    value: Tensor | None = None,
    value_cache: Tensor | None = None,
    *,
    compress_lens: Tensor | None = None,
    compress_seq_offset: Tensor | None = None,
    seq_lens: Tensor | None = None,
    cache_mode: str | None = "Norm",
    scatter_mode: str | None = "None",
    strides: Sequence[int] | None = (1, 1),
    offsets: Sequence[int] | None = (0, 0),
    key_dtype: str | None = None,
    value_dtype: str | None = None,
    run_mode: str | None = None,
    soc: str | None = None,
    check_data: bool | None = None,
) -> Plan:
    """First stage of :func:`scatter_pa_kv_cache`: check the same arguments and choose the kernel.

    ``Plan.run()`` is the second stage and writes; it may be called again when the tensors hold new data.
    ``Plan.workspace_size`` is 0. An accepted call that has nothing to write gives a plan whose run does nothing.
    Raises the same errors as :func:`scatter_pa_kv_cache`.
    """
    tensors = (key, key_cache, slot_mapping, value, value_cache, compress_lens, compress_seq_offset, seq_lens)
    options = (cache_mode, scatter_mode, strides, offsets, key_dtype, value_dtype, soc)
    return make_plan(tensors, options, run_mode, check_data)


def scatter_pa_kv_cache(
    key: Tensor,
    key_cache: Tensor,
    slot_mapping: Tensor | RowIndex,
    value: Tensor | None = None,
    value_cache: Tensor | None = None,
    *,
    compress_lens: Tensor | None = None,
    compress_seq_offset: Tensor | None = None,
    seq_lens: Tensor | None = None,
    cache_mode: str | None = "Norm",
    scatter_mode: str | None = "None",
    strides: Sequence[int] | None = (1, 1),
    offsets: Sequence[int] | None = (0, 0),
    key_dtype: str | None = None,
    value_dtype: str | None = None,
    run_mode: str | None = None,
    soc: str | None = None,
    check_data: bool | None = None,
) -> None:
    """Write the keys and values of new tokens into a paged cache, in place, at the slots that ``slot_mapping`` names.

    Slot s is place ``s % BS`` of block ``s // BS``; a negative slot is padding and its token (or task) is skipped.
    T tokens, H heads, Dk and Dv head sizes, NB blocks of BS slots, L elements in 32 bytes, B sequences.

    Args:
        key: [T, H, Dk]; 4-D compressed: [B, S, H, Dk].
        key_cache: Norm [NB, BS, H, Dk] (compressed: [NB, BS, 1, Dk]); PA_NZ [NB, H*Dk/L, BS, L] or
            [NB, H, Dk/L, BS, L]; NHSD [NB, H, BS, Dk]. May be strided; no cache is ever copied.
        slot_mapping: [T] int32 or int64, or the :class:`RowIndex` of such; compressed: one slot for each (sequence,
            head), [B*H] or, 4-D, [B, H].
        value, value_cache: as key and key_cache with Dv; None for both (or rank-0 tensors) writes keys only.
        compress_lens: window of each (sequence, head); compress_seq_offset: where it begins, -1 for none;
            seq_lens: [B] tokens of each sequence. All of slot_mapping's dtype; only for compressed calls.
        cache_mode: "Norm" or "PA_NZ". scatter_mode: "None", "Alibi", "Rope", "Omni", "Nct" or "NHSD".
        strides, offsets: for Nct: distance between two tokens and begin of the first, in elements, of key and value.
        key_dtype, value_dtype: logical dtype of uint8 storage: "hifloat8", "float4_e2m1" or "float4_e1m2".
        run_mode: "npu", "sim", or None for the tensors' device.
        soc: "A2", "A3" or "950" applies that product's rules; None: the union of all.
        check_data: read the index tensors and apply the rules on their content; None: in sim yes, on an NPU no.

    Returns None. Empty input is success and does nothing.

    Raises:
        ScatterPaKvCacheError: the call is refused; ``.code`` and ``.rule`` say why. The caches keep their bits.
        SimulationError: in sim, a verdict was not PASS or there is no room. The caches keep their bits.

    Under torch.compile this is the operator that the module ``op`` registers, without a graph break; of a
    :class:`RowIndex` it takes the slots.

    The scenarios and rules are those of CANN's operator ScatterPaKvCache. The npu mode was never run by this project.
    """
    tensors = (key, key_cache, slot_mapping, value, value_cache, compress_lens, compress_seq_offset, seq_lens)
    options = (cache_mode, scatter_mode, strides, offsets, key_dtype, value_dtype, soc)
    if torch.compiler.is_compiling():
        from .op import write

        write(tensors, options, run_mode, check_data)
    else:
        make_plan(tensors, options, run_mode, check_data).run()
