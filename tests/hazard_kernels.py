"""Kernels that are wrong on purpose: the task graph must show what each of them loses."""

import pypto

from scatter_pa_kv_cache.patterns.cache_scatter import index_tile, scatter_tile
from scatter_pa_kv_cache.patterns.options import jit_options


def serial_kernel(row, tile, stage):
    """The cache is moved into itself, so each tile waits for the one before. Rows and cache [*, row], index [1, T]."""

    @pypto.frontend.jit(**jit_options(stage))
    def serial(
        source: pypto.Tensor([pypto.DYNAMIC, row], pypto.DT_BF16),
        index: pypto.Tensor([1, pypto.DYNAMIC], pypto.DT_INT32),
        cache: pypto.Tensor([pypto.DYNAMIC, row], pypto.DT_BF16),
    ):
        tokens = source.shape[0]
        for number in pypto.loop((tokens + tile - 1) // tile, name="tokens", idx_name="number", unroll_list=[1]):
            first = number * tile
            count = (tokens - first).min(tile)
            pypto.set_vec_tile_shapes(tile, row)
            names = pypto.view(index, [1, tile], [0, first], valid_shape=[1, count])
            rows = pypto.view(source, [tile, row], [first, 0], valid_shape=[count, row])
            cache.move(pypto.scatter_update(cache, -2, names, rows))

    return serial


def unrolled_kernel(row, tile, unroll, stage):
    """The in/out pair with another ``unroll_list``: of an unrolled body only the last scatter survives."""

    @pypto.frontend.jit(**jit_options(stage))
    def unrolled(
        source: pypto.Tensor([pypto.DYNAMIC, row], pypto.DT_BF16),
        index: pypto.Tensor([1, pypto.DYNAMIC], pypto.DT_INT32),
        cache: pypto.Tensor([pypto.DYNAMIC, pypto.DYNAMIC, 1, row], pypto.DT_BF16),
        cache_rows: pypto.Tensor([pypto.DYNAMIC, row], pypto.DT_BF16),
    ):
        tokens = source.shape[0]
        for number in pypto.loop((tokens + tile - 1) // tile, name="tokens", idx_name="number", unroll_list=unroll):
            first = number * tile
            count = (tokens - first).min(tile)
            pypto.set_vec_tile_shapes(tile, row)
            names = pypto.view(index, [1, tile], [0, first], valid_shape=[1, count])
            rows = pypto.view(source, [tile, row], [first, 0], valid_shape=[count, row])
            cache_2d = pypto.reshape(cache, [cache_rows.shape[0], row], inplace=True)
            cache_rows.move(pypto.scatter_update(cache_2d, -2, names, rows))

    return unrolled


def lossy_norm_kernel(**arguments):
    """The norm kernel, unrolled by 2: half of its writes are lost, and it is fast."""
    return _wrong_norm_kernel(**arguments, unroll=[2, 1], swapped=False)


def swapped_norm_kernel(**arguments):
    """The norm kernel with key and value swapped: as many writes as the right one, of the wrong values."""
    return _wrong_norm_kernel(**arguments, unroll=[1], swapped=True)


def _wrong_norm_kernel(key_side, value_side, index_dtype, one_index, tile, nbuffer, unroll, swapped, stage):
    row = key_side.row

    @pypto.frontend.jit(**jit_options(stage, nbuffer))
    def wrong_norm(
        key: pypto.Tensor([pypto.DYNAMIC, row], pypto.DT_BF16),
        value: pypto.Tensor([pypto.DYNAMIC, row], pypto.DT_BF16),
        key_index: pypto.Tensor([1, pypto.DYNAMIC], pypto.DT_INT32),
        value_index: pypto.Tensor([1, pypto.DYNAMIC], pypto.DT_INT32),
        key_cache: pypto.Tensor([pypto.DYNAMIC, pypto.DYNAMIC, 1, row], pypto.DT_BF16),
        value_cache: pypto.Tensor([pypto.DYNAMIC, pypto.DYNAMIC, 1, row], pypto.DT_BF16),
        key_rows: pypto.Tensor([pypto.DYNAMIC, row], pypto.DT_BF16),
        value_rows: pypto.Tensor([pypto.DYNAMIC, row], pypto.DT_BF16),
    ):
        tokens = key_index.shape[1]
        for number in pypto.loop((tokens + tile - 1) // tile, name="tokens", idx_name="number", unroll_list=unroll):
            first = number * tile
            count = (tokens - first).min(tile)
            index = index_tile(key_index, first, count, tile)
            if swapped:
                scatter_tile(key_rows, key_cache, index, value, first, count, tile, key_side)
                scatter_tile(value_rows, value_cache, index, key, first, count, tile, value_side)
            else:
                scatter_tile(key_rows, key_cache, index, key, first, count, tile, key_side)
                scatter_tile(value_rows, value_cache, index, value, first, count, tile, value_side)

    return wrong_norm
