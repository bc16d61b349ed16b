"""AT-17, block-table gather: a sequence's rows read back from a paged cache as contiguous blocks, by views alone.

Plain functions, called inside a jit kernel. The cache is seen as rows [R, W]: a block is ``block_size`` of them in
line, so a view at a dynamic row is all that a read takes. No gather instruction moves anything.
"""

import pypto


def block_of(block_table, sequence, number):
    """The block that holds block ``number`` of a sequence: a scalar.

    block_table: [B, C] int32, a kernel parameter. A number past the table's last column is taken as that column, so
    nothing is read past a table row; such a block must hold no valid row, or the column must be negative.
    """
    return block_table[sequence, number.min(block_table.shape[1] - 1)]


def block_tile(rows, first, count, tile, width, column=0):
    """``count`` rows from row ``first`` on, which must lie in one block, as [tile, width], count of them valid.

    rows: [R, W], of which the elements from ``column`` on are taken. first: block * block_size + row in the block.
    """
    return pypto.view(rows, [tile, width], [first, column], valid_shape=[count, width])


def gather_blocks(rows, block_table, sequence, number, blocks, block_size, count, width, column=0):
    """``blocks`` blocks of a sequence from its block ``number`` on, as one [blocks * block_size, width] tensor.

    rows, column: as in :func:`block_tile`. block_table: [B, C] int32; a negative entry counts as block 0.
    blocks, block_size, width: Python ints. count: how many of the rows are valid; the others are unspecified.
    The vector tile must be set to [block_size, width] before, its last dim rounded up to 32 bytes.
    """
    gathered = pypto.tensor([blocks * block_size, width], rows.dtype, "gathered")
    for step in range(blocks):
        first = block_of(block_table, sequence, number + step).max(0) * block_size
        pypto.assemble(block_tile(rows, first, block_size, block_size, width, column), [step * block_size, 0], gathered)
    return pypto.view(gathered, [blocks * block_size, width], [0, 0], valid_shape=[count, width])


def block_tiles(length, block_size, tile):
    """Loop over the tiles of a sequence of ``length`` tokens (a scalar), none of which spans two blocks.

    block_size, tile: Python ints, tile <= block_size; the last tile of a block or of the sequence is shorter.
    """
    tiles = length // block_size * -(-block_size // tile) + (length % block_size + tile - 1) // tile
    return pypto.loop(tiles, name="block_tiles", idx_name="tile_number", unroll_list=[1])


def block_tile_bounds(tile_number, length, block_size, tile):
    """Of a tile: its first token, its block's number in the sequence, its place in that block, and how many tokens."""
    parts = -(-block_size // tile)
    number, place = tile_number // parts, tile_number % parts * tile
    token = number * block_size + place
    return token, number, place, (length - token).min(tile).min(block_size - place)
