"""GatherPaKvCache: token t of a sequence is read from block ``table[t // BS]``, place ``t % BS``, into the next row.

The mirror of the scatter kernels, for Norm and PA_NZ caches alike: a token is so many pieces of a memory row.
"""

from functools import cache

import pypto

from ..patterns.block_gather import block_of, block_tile, block_tile_bounds, block_tiles
from ..patterns.options import PYPTO_DTYPES, jit_options
from .tiling import MERGED


@cache
def gather_kernel(key_pages, value_pages, block_size, tile, stage):
    """The kernel for one pair of memory shapes: sequences, table columns, blocks and tokens stay dynamic.

    key_pages, value_pages: :class:`~scatter_pa_kv_cache.kernels.pages.Pages`. tile: rows of a block that a task copies.
    """
    dynamic = pypto.DYNAMIC
    key_dtype = PYPTO_DTYPES[key_pages.dtype]
    value_dtype = PYPTO_DTYPES[value_pages.dtype]

    @pypto.frontend.jit(**jit_options(stage, MERGED))
    def gather(
        block_table: pypto.Tensor([dynamic, dynamic], pypto.DT_INT32),
        first_blocks: pypto.Tensor([dynamic], pypto.DT_INT32),
        lengths: pypto.Tensor([dynamic], pypto.DT_INT32),
        starts: pypto.Tensor([dynamic], pypto.DT_INT32),
        key_zeros: pypto.Tensor([tile, key_pages.piece], key_dtype),
        value_zeros: pypto.Tensor([tile, value_pages.piece], value_dtype),
        key_rows: pypto.Tensor([dynamic, key_pages.width], key_dtype),
        value_rows: pypto.Tensor([dynamic, value_pages.width], value_dtype),
        key: pypto.Tensor([dynamic, key_pages.out_width], key_dtype),
        value: pypto.Tensor([dynamic, value_pages.out_width], value_dtype),
    ):
        for sequence in pypto.loop(lengths.shape[0], name="sequences", idx_name="sequence", unroll_list=[1]):
            length = lengths[sequence]
            for number in block_tiles(length, block_size, tile):
                token, step, place, count = block_tile_bounds(number, length, block_size, tile)
                block = block_of(block_table, sequence, first_blocks[sequence] + step)
                row = starts[sequence] + token
                read_tile(key, key_rows, key_zeros, row, block, place, count, tile, key_pages)
                read_tile(value, value_rows, value_zeros, row, block, place, count, tile, value_pages)

    return gather


def read_tile(out, rows, zeros, row, block, place, count, tile, pages):
    """Copy ``count`` tokens from ``place`` of ``block`` on to ``out`` from ``row`` on; zeros where ``block`` < 0."""
    chunk = pages.chunk
    pypto.set_vec_tile_shapes(tile, pages.padded_piece)
    for number in pypto.loop(pages.pieces // chunk, name="pieces", idx_name="number", unroll_list=[1]):
        for piece in range(chunk):
            at = number * chunk + piece
            column = pages.out_column + at * pages.piece
            if pypto.cond(block < 0):
                nothing = pypto.view(zeros, [tile, pages.piece], [0, 0], valid_shape=[count, pages.piece])
                pypto.assemble(nothing, [row, column], out)
            else:
                first = block * pages.block_rows + place + at * pages.piece_rows
                source = pages.column + at * pages.piece_columns
                pypto.assemble(block_tile(rows, first, count, tile, pages.piece, source), [row, column], out)
