"""AT-20, tail block: a loop over a dynamic axis in tiles, the last one shorter."""

import pypto


def token_tiles(num_tokens, tile):
    """Loop over ``num_tokens`` (a dynamic axis) in tiles of ``tile`` (a Python int): yields the tile number.

    Unrolling would keep only the last ``.move()`` of the unrolled body, so the list is [1] and nothing else.
    """
    return pypto.loop((num_tokens + tile - 1) // tile, name="tokens", idx_name="tile_number", unroll_list=[1])


def tile_bounds(tile_number, num_tokens, tile):
    """First token of a tile and how many of its tokens exist."""
    first = tile_number * tile
    return first, (num_tokens - first).min(tile)
