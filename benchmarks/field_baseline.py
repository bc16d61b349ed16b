# mypy: disable-error-code="valid-type"
"""The field's kernel, written anew from its description: what the figures of this project are compared with.

Everything is reshaped to 2-D in front of the loop, a tile holds 32, 16 or 4 tokens by the width of a row, key and value
of up to eight tiles may become one task, and the scatter's result is moved into the 4-D cache. The compiler turns the
reshapes into work that every tile waits for. The interpreter cannot run this form, so its values are never checked.
"""

from functools import cache

import pypto

from ..kernels.tiling import MERGED
from ..patterns.options import PYPTO_DTYPES, jit_options


def field_tile(width):
    """Tokens a tile for rows of ``width`` elements."""
    if width <= 512:
        return 32
    return 16 if width <= 4096 else 4


@cache
def field_kernel(heads, head_size, dtype, index_dtype, stage):
    """Key and value [T, H, D], caches [NB, BS, H, D], slots [T]: tokens, blocks and block size stay dynamic."""
    dynamic = pypto.DYNAMIC
    data_type = PYPTO_DTYPES[dtype]
    index_type = PYPTO_DTYPES[index_dtype]
    width = heads * head_size
    tile = field_tile(width)
    options = jit_options(stage, MERGED)
    options["runtime_options"] = {**options["runtime_options"], "device_sched_mode": 0}

    @pypto.frontend.jit(**options)
    def field(
        key: pypto.Tensor([dynamic, heads, head_size], data_type),
        value: pypto.Tensor([dynamic, heads, head_size], data_type),
        slots: pypto.Tensor([dynamic], index_type),
        key_cache: pypto.Tensor([dynamic, dynamic, heads, head_size], data_type),
        value_cache: pypto.Tensor([dynamic, dynamic, heads, head_size], data_type),
    ):
        tokens = key.shape[0]
        rows = key_cache.shape[0] * key_cache.shape[1]
        keys = pypto.reshape(key, [tokens, width], inplace=True)
        values = pypto.reshape(value, [tokens, width], inplace=True)
        indexes = pypto.reshape(slots, [tokens, 1], inplace=True)
        key_rows = pypto.reshape(key_cache, [rows, width], inplace=True)
        value_rows = pypto.reshape(value_cache, [rows, width], inplace=True)
        for number in pypto.loop((tokens + tile - 1) // tile, name="tokens", idx_name="number", unroll_list=[1]):
            first = number * tile
            count = (tokens - first).min(tile)
            pypto.set_vec_tile_shapes(tile, width)
            index = pypto.view(indexes, [tile, 1], [first, 0], valid_shape=[count, 1])
            key_tile = pypto.view(keys, [tile, width], [first, 0], valid_shape=[count, width])
            value_tile = pypto.view(values, [tile, width], [first, 0], valid_shape=[count, width])
            key_cache.move(pypto.scatter_update(key_rows, -2, index, key_tile))
            value_cache.move(pypto.scatter_update(value_rows, -2, index, value_tile))

    return field
