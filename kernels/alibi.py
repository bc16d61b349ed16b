"""Scenario 4, Alibi: of each (batch, head) t the newest compress_lens[t] tokens go to the rows from slot t on."""

from functools import cache

import pypto

from ..patterns.options import PYPTO_DTYPES, jit_options
from .runs import Target, copy_run, positive, task_loop


@cache
def alibi_kernel(key_side, value_side, heads, index_dtype, tile, nbuffer, stage):
    """The kernel for one pair of row shapes and one head count: sequences, tokens and num_blocks stay dynamic.

    key_side, value_side: :class:`~scatter_pa_kv_cache.kernels.side.Side`, ``row * groups`` being one head.
    """
    dynamic = pypto.DYNAMIC
    key_dtype = PYPTO_DTYPES[key_side.dtype]
    value_dtype = PYPTO_DTYPES[value_side.dtype]
    index_dtype = PYPTO_DTYPES[index_dtype]

    @pypto.frontend.jit(**jit_options(stage, nbuffer))
    def alibi(
        slot_mapping: pypto.Tensor([dynamic], pypto.DT_INT32),
        compress_lens: pypto.Tensor([dynamic], pypto.DT_INT32),
        seq_lens: pypto.Tensor([dynamic], pypto.DT_INT32),
        seq_starts: pypto.Tensor([dynamic], pypto.DT_INT32),
        key: pypto.Tensor([dynamic, key_side.width], key_dtype),
        value: pypto.Tensor([dynamic, value_side.width], value_dtype),
        key_slot_rows: pypto.Tensor([key_side.groups, dynamic], index_dtype),
        value_slot_rows: pypto.Tensor([value_side.groups, dynamic], index_dtype),
        key_cache: pypto.Tensor([dynamic, dynamic, 1, key_side.row], key_dtype),
        value_cache: pypto.Tensor([dynamic, dynamic, 1, value_side.row], value_dtype),
        key_rows: pypto.Tensor([dynamic, key_side.row], key_dtype),
        value_rows: pypto.Tensor([dynamic, value_side.row], value_dtype),
    ):
        targets = (
            Target(key_side, key, key_slot_rows, key_cache, key_rows),
            Target(value_side, value, value_slot_rows, value_cache, value_rows),
        )
        for task in task_loop(slot_mapping):
            slot, window, length = slot_mapping[task], compress_lens[task], seq_lens[task // heads]
            kept = window.min(length) * positive(slot + 1)
            first = seq_starts[task // heads] + length - kept
            copy_run(targets, task % heads, first, slot + window - kept, kept, tile)

    return alibi
