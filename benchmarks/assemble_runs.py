# mypy: disable-error-code="valid-type"
"""Alibi with ``assemble`` instead of the card's scatter: a tile of a run is one store, and no index is loaded.

It leaves the pattern card AT-16 and serves dense caches alone, where the slots of a run are consecutive rows. A
candidate: the package does not use it. ``bench model`` prints what it would gain in the cost model.
"""

from functools import cache

import pypto

from ..kernels.runs import positive, task_loop
from ..patterns.options import PYPTO_DTYPES, jit_options


@cache
def assemble_runs_kernel(key_side, value_side, heads, tile, nbuffer, stage):
    """The alibi kernel without its index: arguments and parameters as there, less slot rows and caches as read.

    key_side, value_side: :class:`~scatter_pa_kv_cache.kernels.side.Side` of one row a head, in multiples of 32 bytes.
    """
    dynamic = pypto.DYNAMIC
    key_dtype = PYPTO_DTYPES[key_side.dtype]
    value_dtype = PYPTO_DTYPES[value_side.dtype]

    @pypto.frontend.jit(**jit_options(stage, nbuffer))
    def assemble_runs(
        slot_mapping: pypto.Tensor([dynamic], pypto.DT_INT32),
        compress_lens: pypto.Tensor([dynamic], pypto.DT_INT32),
        seq_lens: pypto.Tensor([dynamic], pypto.DT_INT32),
        seq_starts: pypto.Tensor([dynamic], pypto.DT_INT32),
        key: pypto.Tensor([dynamic, key_side.width], key_dtype),
        value: pypto.Tensor([dynamic, value_side.width], value_dtype),
        key_rows: pypto.Tensor([dynamic, key_side.row], key_dtype),
        value_rows: pypto.Tensor([dynamic, value_side.row], value_dtype),
    ):
        for task in task_loop(slot_mapping):
            slot, window, length = slot_mapping[task], compress_lens[task], seq_lens[task // heads]
            kept = window.min(length) * positive(slot + 1)
            first = seq_starts[task // heads] + length - kept
            for number in pypto.loop((kept + tile - 1) // tile, name="run", idx_name="number", unroll_list=[1]):
                done = number * tile
                count = (kept - done).min(tile)
                row = slot + window - kept + done
                copy_rows(key_rows, key, key_side, task % heads, first + done, row, count, tile)
                copy_rows(value_rows, value, value_side, task % heads, first + done, row, count, tile)

    return assemble_runs


def copy_rows(rows_out, source, side, head, first, row, count, tile):
    """Copy ``count`` tokens of one head from token ``first`` on to the rows from ``row`` on, in one store."""
    column = side.column + head * side.row
    pypto.set_vec_tile_shapes(tile, side.row)
    rows = pypto.view(source, [tile, side.row], [first, column], valid_shape=[count, side.row])
    pypto.assemble(rows, [row, 0], rows_out)
