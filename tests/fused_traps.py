"""What the fused kernels must not do, each in the smallest kernel that shows it."""

import pypto

from scatter_pa_kv_cache.patterns.cache_scatter import index_tile, run_index, scatter_rows, updated_rows
from scatter_pa_kv_cache.patterns.options import jit_options
from scatter_pa_kv_cache.patterns.stages import rows_of
from scatter_pa_kv_cache.patterns.tail_block import tile_bounds, token_tiles

DYNAMIC, FP32, INT32 = pypto.DYNAMIC, pypto.DT_FP32, pypto.DT_INT32
WIDTH, TILE, RATIO = 64, 8, 4


def write_then_read_kernel(stage):
    """One kernel that scatters tiles by an in/out pair and then reads every row of the cache."""

    @pypto.frontend.jit(**jit_options(stage))
    def write_then_read(
        source: pypto.Tensor([DYNAMIC, WIDTH], FP32),
        index: pypto.Tensor([1, DYNAMIC], INT32),
        cache: pypto.Tensor([DYNAMIC, DYNAMIC, 1, WIDTH], FP32),
        rows: pypto.Tensor([DYNAMIC, WIDTH], FP32),
        out: pypto.Tensor([DYNAMIC, WIDTH], FP32),
    ):
        num_tokens = index.shape[1]
        for number in token_tiles(num_tokens, TILE):
            first, count = tile_bounds(number, num_tokens, TILE)
            names = index_tile(index, first, count, TILE)
            pypto.set_vec_tile_shapes(TILE, WIDTH)
            scatter_rows(rows, cache, names, rows_of(source, first, count, TILE))
        for number in token_tiles(out.shape[0], TILE):
            first, count = tile_bounds(number, out.shape[0], TILE)
            pypto.set_vec_tile_shapes(TILE, WIDTH)
            pypto.assemble(rows_of(rows, first, count, TILE) * 2.0, [first, 0], out)

    return write_then_read


def window_kernel(stage, scale):
    """The window of compressor_state; ``scale`` False moves it out as it is."""

    @pypto.frontend.jit(**jit_options(stage))
    def window(
        new: pypto.Tensor([DYNAMIC, WIDTH], FP32),
        places: pypto.Tensor([1, RATIO], INT32),
        start: pypto.Tensor([DYNAMIC], INT32),
        state: pypto.Tensor([DYNAMIC, WIDTH], FP32),
        out: pypto.Tensor([DYNAMIC, WIDTH], FP32),
    ):
        for number in pypto.loop(start.shape[0], name="windows", idx_name="number", unroll_list=[1]):
            place = start[number] % RATIO
            count = (RATIO - place).min(3)
            index = run_index(places, place, count, 3)
            old = rows_of(state, start[number] - place, RATIO, RATIO)
            updated = updated_rows(old, index, rows_of(new, number * 3, count, 3))
            pypto.set_vec_tile_shapes(RATIO, WIDTH)
            pypto.assemble(updated * 1.0 if scale else updated, [number * RATIO, 0], out)

    return window


def reshaped_tail_kernel(stage):
    """Pairs made by reshaping a tile that may be a tail, instead of being read as pairs."""

    @pypto.frontend.jit(**jit_options(stage))
    def reshaped_tail(
        source: pypto.Tensor([DYNAMIC, 2 * WIDTH], FP32),
        out: pypto.Tensor([DYNAMIC, WIDTH], FP32),
    ):
        num_tokens = source.shape[0]
        for number in token_tiles(num_tokens, TILE):
            first, count = tile_bounds(number, num_tokens, TILE)
            half = WIDTH // 2
            pypto.set_vec_tile_shapes(TILE, half, 8)
            rows = rows_of(source, first, count, TILE, WIDTH, WIDTH)
            pairs = pypto.transpose(pypto.reshape(rows, [TILE, half, 2], valid_shape=[count, half, 2]), 1, 2)
            pypto.set_vec_tile_shapes(TILE, 2, half)
            split = pypto.reshape(pairs, [TILE, WIDTH], valid_shape=[count, WIDTH])
            pypto.set_vec_tile_shapes(TILE, WIDTH)
            pypto.assemble(split * 1.0, [first, 0], out)

    return reshaped_tail
