"""AT-16, paged cache scatter: a tile of rows into a cache, at the rows that an index names.

Plain functions, called inside a jit kernel. The index is a view of a kernel parameter and nothing is computed in front
of the scatter: on a device the scatter does not wait for vector operations of its own task.
"""

import pypto


def index_tile(index, first, count, tile, groups=1):
    """The row index of tokens ``first .. first+count-1``.

    index: [1, T*groups] int32 or int64, a kernel parameter. Returns [1, tile*groups], of which count*groups are valid.
    One tile may serve several caches.
    """
    return pypto.view(index, [1, tile * groups], [0, first * groups], valid_shape=[1, count * groups])


def run_index(numbers, first, count, tile, line=0):
    """The row index of ``count`` rows in a run, of which the first is number ``first``: [1, tile], count valid.

    numbers: [lines, R] int32 or int64, a kernel parameter; a line holds the cache rows in the order of a run, which is
    0, 1, 2, ... for the places inside a block or window. ``first`` may be a scalar that the kernel reads: the index is
    a view at it, and nothing is added to anything.
    """
    return pypto.view(numbers, [1, tile], [line, first], valid_shape=[1, count])


def scatter_tile(rows_out, cache, index, source, first, count, tile, side):
    """Write the rows of tokens ``first .. first+count-1`` of ``source`` at the rows that ``index`` names.

    rows_out, cache, index: as in :func:`scatter_rows`, the index from :func:`index_tile`.
    source: [T*G, W], of which a cache row takes the L elements from ``side.column`` on.
    side: anything with Python ints ``row`` (L), ``groups`` (G) and ``column``.
    """
    row, groups = side.row, side.groups
    pypto.set_vec_tile_shapes(tile * groups, row)
    rows = pypto.view(source, [tile * groups, row], [first * groups, side.column], valid_shape=[count * groups, row])
    scatter_rows(rows_out, cache, index, rows)


def scatter_rows(rows_out, cache, index, rows):
    """Write ``rows`` [n, L] at the rows of the cache that ``index`` [1, n] names.

    rows_out: [R, L], the cache's rows, written. cache: 4-D, the same memory as ``rows_out``, read by the graph only and
    reshaped here, inside the loop. Negative entries of the index are skipped by the device.
    """
    cache_2d = pypto.reshape(cache, rows_out.shape, inplace=True)
    rows_out.move(pypto.scatter_update(cache_2d, -2, index, rows))


def updated_rows(rows, index, new):
    """A copy of ``rows`` [R, L] with ``new`` [n, L] at the rows of it that ``index`` [1, n] names.

    rows: a view of a tensor; without the copy the device would write into that tensor itself, at its first row. Use the
    result in a computation: moved to a row of a tensor as it is, it is folded into the scatter and ends up elsewhere.
    """
    count, width = new.shape
    pypto.set_vec_tile_shapes(rows.shape[0], width)
    copy = pypto.clone(rows)
    pypto.set_vec_tile_shapes(count, width)
    return pypto.scatter_update(copy, -2, index, new)
