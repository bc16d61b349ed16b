"""One small kernel for each pattern, and for each form of AT-16's index, so that the tests run them alone."""

import pypto

from scatter_pa_kv_cache.patterns.block_gather import gather_blocks
from scatter_pa_kv_cache.patterns.cache_scatter import index_tile, run_index, scatter_rows, scatter_tile
from scatter_pa_kv_cache.patterns.options import PYPTO_DTYPES, jit_options
from scatter_pa_kv_cache.patterns.tail_block import tile_bounds, token_tiles

DYNAMIC = pypto.DYNAMIC


def scatter_kernel(side, index_dtype, tile, stage):
    """AT-16: T tokens of G rows each; G = 1 is the index by slots, G > 1 the one by (slot, group)."""
    dtype = PYPTO_DTYPES[side.dtype]

    @pypto.frontend.jit(**jit_options(stage))
    def scatter(
        source: pypto.Tensor([DYNAMIC, side.width], dtype),
        index: pypto.Tensor([1, DYNAMIC], PYPTO_DTYPES[index_dtype]),
        cache: pypto.Tensor([DYNAMIC, DYNAMIC, 1, side.row], dtype),
        cache_rows: pypto.Tensor([DYNAMIC, side.row], dtype),
    ):
        num_tokens = index.shape[1] // side.groups
        for number in token_tiles(num_tokens, tile):
            first, count = tile_bounds(number, num_tokens, tile)
            names = index_tile(index, first, count, tile, side.groups)
            scatter_tile(cache_rows, cache, names, source, first, count, tile, side)

    return scatter


def three_caches_kernel(widths, tile, stage):
    """AT-16: one int64 index for caches of int8, bfloat16 and float32 rows, of three widths."""
    int8, half, single = pypto.DT_INT8, pypto.DT_BF16, pypto.DT_FP32

    @pypto.frontend.jit(**jit_options(stage))
    def three_caches(
        nope: pypto.Tensor([DYNAMIC, widths[0]], int8),
        rope: pypto.Tensor([DYNAMIC, widths[1]], half),
        scale: pypto.Tensor([DYNAMIC, widths[2]], single),
        index: pypto.Tensor([1, DYNAMIC], pypto.DT_INT64),
        nope_cache: pypto.Tensor([DYNAMIC, DYNAMIC, 1, widths[0]], int8),
        rope_cache: pypto.Tensor([DYNAMIC, DYNAMIC, 1, widths[1]], half),
        scale_cache: pypto.Tensor([DYNAMIC, DYNAMIC, 1, widths[2]], single),
        nope_rows: pypto.Tensor([DYNAMIC, widths[0]], int8),
        rope_rows: pypto.Tensor([DYNAMIC, widths[1]], half),
        scale_rows: pypto.Tensor([DYNAMIC, widths[2]], single),
    ):
        for number in token_tiles(index.shape[1], tile):
            first, count = tile_bounds(number, index.shape[1], tile)
            names = index_tile(index, first, count, tile)
            for source, cache, rows in (
                (nope, nope_cache, nope_rows),
                (rope, rope_cache, rope_rows),
                (scale, scale_cache, scale_rows),
            ):
                width = source.shape[1]
                pypto.set_vec_tile_shapes(tile, width)
                tile_rows = pypto.view(source, [tile, width], [first, 0], valid_shape=[count, width])
                scatter_rows(rows, cache, names, tile_rows)

    return three_caches


def window_kernel(ratio, width, stage):
    """AT-16: the index is a view of 0, 1, 2, ... at a place inside a window, of which each sequence has one.

    Rows past the window's end are cut off by the valid shape of index and source.
    """

    @pypto.frontend.jit(**jit_options(stage))
    def window(
        fresh: pypto.Tensor([DYNAMIC, width], pypto.DT_FP32),
        numbers: pypto.Tensor([1, DYNAMIC], pypto.DT_INT32),
        begins: pypto.Tensor([DYNAMIC], pypto.DT_INT32),
        counts: pypto.Tensor([DYNAMIC], pypto.DT_INT32),
        windows: pypto.Tensor([DYNAMIC, ratio, 1, width], pypto.DT_FP32),
        window_rows: pypto.Tensor([DYNAMIC, width], pypto.DT_FP32),
    ):
        for sequence in pypto.loop(begins.shape[0], name="sequences", idx_name="sequence", unroll_list=[1]):
            begin = begins[sequence]
            count = counts[sequence].min(ratio - begin)
            pypto.set_vec_tile_shapes(ratio, width)
            rows = pypto.view(fresh, [ratio, width], [sequence * ratio, 0], valid_shape=[count, width])
            scatter_rows(window_rows, windows, run_index(numbers, sequence * ratio + begin, count, ratio), rows)

    return window


def read_kernel(dtype, blocks, block_size, width, column, cache_width, stage):
    """AT-17: every sequence in spans of ``blocks`` blocks, its rows doubled; and the sum of each span, where rows that
    are not valid would show."""
    element = PYPTO_DTYPES[dtype]
    span = blocks * block_size

    @pypto.frontend.jit(**jit_options(stage))
    def read(
        block_table: pypto.Tensor([DYNAMIC, DYNAMIC], pypto.DT_INT32),
        lengths: pypto.Tensor([DYNAMIC], pypto.DT_INT32),
        starts: pypto.Tensor([DYNAMIC], pypto.DT_INT32),
        cache_rows: pypto.Tensor([DYNAMIC, cache_width], element),
        doubled: pypto.Tensor([DYNAMIC, width], element),
        sums: pypto.Tensor([DYNAMIC, width], pypto.DT_FP32),
    ):
        for sequence in pypto.loop(lengths.shape[0], name="sequences", idx_name="sequence", unroll_list=[1]):
            spans = (lengths[sequence] + span - 1) // span
            for number in pypto.loop(spans, name="spans", idx_name="number", unroll_list=[1]):
                count = (lengths[sequence] - number * span).min(span)
                pypto.set_vec_tile_shapes(block_size, width)
                rows = gather_blocks(
                    cache_rows, block_table, sequence, number * blocks, blocks, block_size, count, width, column
                )
                pypto.set_vec_tile_shapes(span, width)
                numbers = pypto.cast(rows, pypto.DT_FP32)
                first = starts[sequence] + number * span
                pypto.assemble(pypto.cast(numbers * 2.0, element), [first, 0], doubled)
                pypto.assemble(pypto.sum(numbers, 0, True), [first // span, 0], sums)

    return read


def tail_kernel(tile, width, stage):
    """AT-20: every token plus one, tile by tile."""

    @pypto.frontend.jit(**jit_options(stage))
    def tail(source: pypto.Tensor([DYNAMIC, width], pypto.DT_FP32), out: pypto.Tensor([DYNAMIC, width], pypto.DT_FP32)):
        for number in token_tiles(source.shape[0], tile):
            first, count = tile_bounds(number, source.shape[0], tile)
            pypto.set_vec_tile_shapes(tile, width)
            rows = pypto.view(source, [tile, width], [first, 0], valid_shape=[count, width])
            pypto.assemble(rows + 1.0, [first, 0], out)

    return tail
