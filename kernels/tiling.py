"""How many tokens a tile holds, chosen on the host. Needs no pypto.

One tile is one task on a vector core: its rows are loaded into the unified buffer and stored to the cache row by row.
"""

from typing import NamedTuple

UNIFIED_BUFFER_BYTES = 192 * 1024
VECTOR_CORES = 48

# PyPTO's vec_nbuffer_setting: key and value as tasks of their own, or merged into one task
SEPARATE = ((-1, 1),)
MERGED = ((-2, 1), (-1, 8))

# tile sizes that are compiled; a token count picks the smallest that spreads it over the cores
LADDER = (8, 16, 32, 64, 112, 176)


class Tiling(NamedTuple):
    """Tokens a tile, and whether key and value of a tile share a task."""

    tokens: int
    nbuffer: tuple[tuple[int, int], ...]


def largest_tile(row_bytes, index_bytes, groups=1):
    """The largest tile of tokens whose ``groups`` rows of ``row_bytes`` and index fit the unified buffer."""
    padded = (row_bytes + 31) // 32 * 32
    most = UNIFIED_BUFFER_BYTES // (groups * (padded + index_bytes))
    return most // 8 * 8 if most >= 8 else most


def choose_tiling(num_tokens, row_bytes, index_bytes, groups=1, caches=2):
    """The tile for ``num_tokens`` tokens of ``groups`` rows of ``row_bytes`` (the wider of key and value).

    With two caches a tile is two tasks, so half the cores' worth of tiles keeps every core busy. Where that tile does
    not fit the unified buffer, key and value are merged into one task and the tile is the largest that fits.
    """
    largest = largest_tile(row_bytes, index_bytes, groups)
    steps = [tokens for tokens in LADDER if tokens < largest] + [largest]
    cores = VECTOR_CORES // caches
    for tokens in steps:
        if tokens * cores >= num_tokens:
            return Tiling(tokens, SEPARATE)
    for tokens in steps:
        if tokens * VECTOR_CORES >= num_tokens:
            return Tiling(tokens, MERGED)
    return Tiling(largest, MERGED)
