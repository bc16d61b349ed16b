"""The write as a torch operator, which torch.compile and torch.export can see. Importing this module registers it.

The schema is inferred and the kernel registered for all devices at once: a call costs some 4 us more than the public
function, where ``torch.library.custom_op`` costs some 110 and takes no keyword-only tensors.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .indexing import RowIndex
from .planning import make_plan


def _write(
    key: Tensor,
    key_cache: Tensor,
    slot_mapping: Tensor,
    value: Tensor | None = None,
    value_cache: Tensor | None = None,
    *,
    compress_lens: Tensor | None = None,
    compress_seq_offset: Tensor | None = None,
    seq_lens: Tensor | None = None,
    cache_mode: str | None = "Norm",
    scatter_mode: str | None = "None",
    strides: Sequence[int] | None = None,
    offsets: Sequence[int] | None = None,
    key_dtype: str | None = None,
    value_dtype: str | None = None,
    run_mode: str | None = None,
    soc: str | None = None,
    check_data: bool | None = None,
) -> None:
    strides = (1, 1) if strides is None else strides
    offsets = (0, 0) if offsets is None else offsets
    tensors = (key, key_cache, slot_mapping, value, value_cache, compress_lens, compress_seq_offset, seq_lens)
    options = (cache_mode, scatter_mode, strides, offsets, key_dtype, value_dtype, soc)
    make_plan(tensors, options, run_mode, check_data).run()


def _fake(
    key: Tensor,
    key_cache: Tensor,
    slot_mapping: Tensor,
    value: Tensor | None = None,
    value_cache: Tensor | None = None,
    **_: object,
) -> None:
    """Nothing is returned; what the call refuses, it refuses when it runs.

    What places the caches in memory becomes constant in a graph: where it is dynamic, torch 2.13's inductor writes a
    view that was made in the graph at offset 0 (pytorch issue 198068).
    """
    for cache in (key_cache, value_cache):
        if cache is not None:
            for number in (*cache.shape, *cache.stride(), cache.storage_offset()):
                int(number)


_NAME = "scatter_pa_kv_cache"
_LIBRARY = torch.library.Library(_NAME, "DEF")  # kept: the operator goes with it
_LIBRARY.define(
    _NAME + torch.library.infer_schema(_write, mutates_args=("key_cache", "value_cache")),
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides),
)
_LIBRARY.impl(_NAME, _write, "CompositeExplicitAutograd")
torch.library.register_fake(f"{_NAME}::{_NAME}", _fake, lib=_LIBRARY)

OPERATOR = torch.ops.scatter_pa_kv_cache.scatter_pa_kv_cache.default
"""``torch.ops.scatter_pa_kv_cache.scatter_pa_kv_cache``: the public function with its arguments, defaults and errors.

``slot_mapping`` must be a tensor; None for ``strides`` or ``offsets`` is their default.
"""


def write(
    tensors: tuple[Tensor | RowIndex | None, ...],
    options: tuple[Any, ...],
    run_mode: str | None,
    check_data: bool | None,
) -> None:
    """What the public function does under torch.compile; tensors and options are those of ``planning.make_plan``."""
    key, key_cache, slot_mapping, value, value_cache, compress_lens, compress_seq_offset, seq_lens = tensors
    cache_mode, scatter_mode, strides, offsets, key_dtype, value_dtype, soc = options
    OPERATOR(
        key,
        key_cache,
        slot_mapping.slot_mapping if isinstance(slot_mapping, RowIndex) else slot_mapping,
        value,
        value_cache,
        compress_lens=compress_lens,
        compress_seq_offset=compress_seq_offset,
        seq_lens=seq_lens,
        cache_mode=cache_mode,
        scatter_mode=scatter_mode,
        strides=strides or (),  # Nct refuses None, which is a default here
        offsets=offsets or (),
        key_dtype=key_dtype,
        value_dtype=value_dtype,
        run_mode=run_mode,
        soc=soc,
        check_data=check_data,
    )
