"""Scenario 7, NHSD layout: head h of token i goes to row (block*H + h)*BS + place of the cache seen as [NB*H*BS, D]."""

from functools import cache

import pypto

from ..patterns.cache_scatter import index_tile, scatter_tile
from ..patterns.options import PYPTO_DTYPES, jit_options
from ..patterns.tail_block import tile_bounds, token_tiles


@cache
def nhsd_kernel(key_side, value_side, index_dtype, one_index, tile, nbuffer, stage):
    """The kernel for one pair of row shapes: num_tokens, num_blocks and block_size stay dynamic.

    key_side, value_side: :class:`~scatter_pa_kv_cache.kernels.side.Side`. one_index: key and value use ``key_index``.
    """
    dynamic = pypto.DYNAMIC
    key_dtype = PYPTO_DTYPES[key_side.dtype]
    value_dtype = PYPTO_DTYPES[value_side.dtype]
    index_dtype = PYPTO_DTYPES[index_dtype]

    @pypto.frontend.jit(**jit_options(stage, nbuffer))
    def nhsd(
        key: pypto.Tensor([dynamic, key_side.width], key_dtype),
        value: pypto.Tensor([dynamic, value_side.width], value_dtype),
        key_index: pypto.Tensor([1, dynamic], index_dtype),
        value_index: pypto.Tensor([1, dynamic], index_dtype),
        key_cache: pypto.Tensor([dynamic, dynamic, 1, key_side.row], key_dtype),
        value_cache: pypto.Tensor([dynamic, dynamic, 1, value_side.row], value_dtype),
        key_rows: pypto.Tensor([dynamic, key_side.row], key_dtype),
        value_rows: pypto.Tensor([dynamic, value_side.row], value_dtype),
    ):
        num_tokens = key_index.shape[1] // key_side.groups
        for number in token_tiles(num_tokens, tile):
            first, count = tile_bounds(number, num_tokens, tile)
            index = index_tile(key_index, first, count, tile, key_side.groups)
            scatter_tile(key_rows, key_cache, index, key, first, count, tile, key_side)
            if not one_index:
                index = index_tile(value_index, first, count, tile, value_side.groups)
            scatter_tile(value_rows, value_cache, index, value, first, count, tile, value_side)

    return nhsd
