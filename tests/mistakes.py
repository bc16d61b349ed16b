"""What goes wrong in a kernel that embeds AT-16: one kernel a mistake, beside the right one.

The tensors of each: source [T, ROW] and index [1, T], and the cache twice, as [NB, BS, 1, ROW] and as rows
[NB * BS, ROW], on one memory.
"""

import pypto

from scatter_pa_kv_cache.patterns.cache_scatter import scatter_rows
from scatter_pa_kv_cache.patterns.options import jit_options

ROW, TILE = 32, 8
ELEMENT, INDEX = pypto.DT_BF16, pypto.DT_INT32


def tile_of(source, index, number, whole=False, narrow=False):
    """Rows [TILE, ROW] and index [1, TILE] of a tile.

    ``whole`` forgets that the last tile is shorter, ``narrow`` truncates the index to 16 bits on its way.
    """
    first = number * TILE
    count = TILE if whole else (source.shape[0] - first).min(TILE)
    rows = pypto.view(source, [TILE, ROW], [first, 0], valid_shape=[count, ROW])
    names = pypto.view(index, [1, TILE], [0, first], valid_shape=[1, count])
    return rows, pypto.cast(pypto.cast(names, pypto.DT_INT16), INDEX) if narrow else names


def right_kernel(stage, unroll=(1,), vec_rows=TILE, whole=False, narrow=False):
    """The pattern as it should be, but for what a mistake changes."""

    @pypto.frontend.jit(**jit_options(stage))
    def right(
        source: pypto.Tensor([pypto.DYNAMIC, ROW], ELEMENT),
        index: pypto.Tensor([1, pypto.DYNAMIC], INDEX),
        cache: pypto.Tensor([pypto.DYNAMIC, pypto.DYNAMIC, 1, ROW], ELEMENT),
        cache_rows: pypto.Tensor([pypto.DYNAMIC, ROW], ELEMENT),
    ):
        tiles = (source.shape[0] + TILE - 1) // TILE
        for number in pypto.loop(tiles, name="tokens", idx_name="number", unroll_list=list(unroll)):
            pypto.set_vec_tile_shapes(vec_rows, ROW)
            rows, names = tile_of(source, index, number, whole, narrow)
            scatter_rows(cache_rows, cache, names, rows)

    return right


def reshaped_before_kernel(stage):
    """The reshape stands before the loop: exact, but a task of its own that every iteration waits for."""

    @pypto.frontend.jit(**jit_options(stage))
    def reshaped_before(
        source: pypto.Tensor([pypto.DYNAMIC, ROW], ELEMENT),
        index: pypto.Tensor([1, pypto.DYNAMIC], INDEX),
        cache: pypto.Tensor([pypto.DYNAMIC, pypto.DYNAMIC, 1, ROW], ELEMENT),
        cache_rows: pypto.Tensor([pypto.DYNAMIC, ROW], ELEMENT),
    ):
        cache_2d = pypto.reshape(cache, cache_rows.shape, inplace=True)
        tiles = (source.shape[0] + TILE - 1) // TILE
        for number in pypto.loop(tiles, name="tokens", idx_name="number", unroll_list=[1]):
            pypto.set_vec_tile_shapes(TILE, ROW)
            rows, names = tile_of(source, index, number)
            cache_rows.move(pypto.scatter_update(cache_2d, -2, names, rows))

    return reshaped_before


def written_back_kernel(stage, inside):
    """The 4-D cache is the only one: its reshaped self is moved into, in the loop (``inside``) or before it."""

    @pypto.frontend.jit(**jit_options(stage))
    def written_back(
        source: pypto.Tensor([pypto.DYNAMIC, ROW], ELEMENT),
        index: pypto.Tensor([1, pypto.DYNAMIC], INDEX),
        cache: pypto.Tensor([pypto.DYNAMIC, pypto.DYNAMIC, 1, ROW], ELEMENT),
        cache_rows: pypto.Tensor([pypto.DYNAMIC, ROW], ELEMENT),
    ):
        cache_2d = pypto.reshape(cache, cache_rows.shape, inplace=True)
        tiles = (source.shape[0] + TILE - 1) // TILE
        for number in pypto.loop(tiles, name="tokens", idx_name="number", unroll_list=[1]):
            pypto.set_vec_tile_shapes(TILE, ROW)
            rows, names = tile_of(source, index, number)
            if inside:
                cache_2d = pypto.reshape(cache, cache_rows.shape, inplace=True)
            cache_2d.move(pypto.scatter_update(cache_2d, -2, names, rows))

    return written_back


def rank_kernel(stage, form):
    """The result has another rank than what it is moved into.

    "2-D into 4-D": the 2-D result into the 4-D cache. "4-D into 2-D": a 4-D result, of the 4-D cache, into the rows.
    "reshaped": the 2-D result made 4-D, into the rows.
    """

    @pypto.frontend.jit(**jit_options(stage))
    def rank(
        source: pypto.Tensor([pypto.DYNAMIC, ROW], ELEMENT),
        index: pypto.Tensor([1, pypto.DYNAMIC], INDEX),
        cache: pypto.Tensor([pypto.DYNAMIC, pypto.DYNAMIC, 1, ROW], ELEMENT),
        cache_rows: pypto.Tensor([pypto.DYNAMIC, ROW], ELEMENT),
    ):
        tiles = (source.shape[0] + TILE - 1) // TILE
        for number in pypto.loop(tiles, name="tokens", idx_name="number", unroll_list=[1]):
            pypto.set_vec_tile_shapes(TILE, ROW)
            rows, names = tile_of(source, index, number)
            if form == "4-D into 2-D":
                pypto.set_vec_tile_shapes(1, TILE, 1, ROW)
                updated = pypto.scatter_update(cache, -2, names, pypto.reshape(rows, [1, TILE, 1, ROW]))
                cache_rows.move(updated)
            else:
                updated = pypto.scatter_update(pypto.reshape(cache, cache_rows.shape, inplace=True), -2, names, rows)
                if form == "reshaped":
                    cache_rows.move(pypto.reshape(updated, cache.shape, inplace=True))
                else:
                    cache.move(updated)

    return rank
