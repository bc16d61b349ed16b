"""Scenario 6, key only: the [H, D] row of token i goes to row ``slot_mapping[i]`` of the cache as [NB*BS, H*D]."""

from functools import cache

import pypto

from ..patterns.cache_scatter import index_tile, scatter_tile
from ..patterns.options import PYPTO_DTYPES, jit_options
from ..patterns.tail_block import tile_bounds, token_tiles


@cache
def key_only_kernel(key_side, index_dtype, tile, nbuffer, stage):
    """The kernel for one row shape, plain or Nct: num_tokens, num_blocks and block_size stay dynamic.

    key_side: :class:`~scatter_pa_kv_cache.kernels.side.Side`.
    """
    dynamic = pypto.DYNAMIC
    dtype = PYPTO_DTYPES[key_side.dtype]
    index_dtype = PYPTO_DTYPES[index_dtype]

    @pypto.frontend.jit(**jit_options(stage, nbuffer))
    def key_only(
        key: pypto.Tensor([dynamic, key_side.width], dtype),
        key_index: pypto.Tensor([1, dynamic], index_dtype),
        key_cache: pypto.Tensor([dynamic, dynamic, 1, key_side.row], dtype),
        key_rows: pypto.Tensor([dynamic, key_side.row], dtype),
    ):
        num_tokens = key_index.shape[1] // key_side.groups
        for number in token_tiles(num_tokens, tile):
            first, count = tile_bounds(number, num_tokens, tile)
            index = index_tile(key_index, first, count, tile, key_side.groups)
            scatter_tile(key_rows, key_cache, index, key, first, count, tile, key_side)

    return key_only
