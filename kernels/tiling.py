"""How many tokens a tile holds, chosen on the host from row bytes and token count. Needs no pypto.

One tile is one task on a vector core, for each cache or for both: its rows and its index are loaded into the unified
buffer, then the rows are stored one by one. The reasons are figures of PyPTO's cost model, not measured on an NPU; the
command ``python -m scatter_pa_kv_cache.benchmarks.model`` prints what the rule comes to.
"""

from typing import NamedTuple

UNIFIED_BUFFER_BYTES = 192 * 1024
VECTOR_CORES = 48

# PyPTO's vec_nbuffer_setting: key and value as tasks of their own, or merged into one. No other setting differs.
SEPARATE = ((-1, 1),)
MERGED = ((-2, 1), (-1, 8))

# bytes of rows of the tiles that are compiled, beside the largest: from many small tasks to few large ones
_STEPS = tuple(kib * 1024 for kib in (4, 16, 48, 112))
_LEAST_TOKEN_BYTES = 256  # narrower tokens would make tiles of more rows than the model charges for

# cycles of the cost model: a load, a dispatch (8 at most in line), a row's bytes; a row store, which it leaves free, is
# priced at 30, between the 12 and 60 that bound it for short rows
_LOAD, _DISPATCH, _DISPATCHES, _BYTES_A_CYCLE, _ROW_STORE = 1400, 200, 8, 96, 30


class Tiling(NamedTuple):
    """Tokens a tile, and whether key and value of a tile share a task."""

    tokens: int
    nbuffer: tuple[tuple[int, int], ...]


def largest_tile(row_bytes: int, index_bytes: int, groups: int = 1) -> int:
    """The most tokens of ``groups`` rows that fit the unified buffer, rows padded to 32 bytes and the index as a whole.

    One tile more does not compile; merged tasks have the same limit, for key and value then share one region.
    """
    rows = groups * _padded(row_bytes)
    tile = UNIFIED_BUFFER_BYTES // (rows + groups * index_bytes)
    while tile and tile * rows + _padded(tile * groups * index_bytes) > UNIFIED_BUFFER_BYTES:
        tile -= 1
    return tile


def choose_tiling(
    num_tokens: int, row_bytes: int, index_bytes: int, groups: int = 1, caches: int = 2, least: int = 1
) -> Tiling:
    """The tiling for ``num_tokens`` tokens of ``groups`` rows of ``row_bytes``, the wider of key and value.

    The cheapest of :func:`tilings` that every core runs at most once; a second round costs more than any tile saves.
    Where none does, the last one. least: tokens that a tile should hold if any can.
    """
    options = tilings(row_bytes, index_bytes, groups, caches)
    options = [option for option in options if option.tokens >= least] or options[-1:]
    one_round = [option for option in options if _tasks(option, num_tokens, caches) <= VECTOR_CORES]
    return min(
        one_round, key=lambda option: _cycles(option, num_tokens, row_bytes, groups, caches), default=options[-1]
    )


def tilings(row_bytes: int, index_bytes: int, groups: int = 1, caches: int = 2) -> list[Tiling]:
    """What is ever compiled for a row shape: at most six, the largest tile last."""
    largest = largest_tile(row_bytes, index_bytes, groups)
    if largest >= 8:
        largest = largest // 8 * 8  # the index of every tile then starts at a multiple of 32 bytes
    token_bytes = max(groups * row_bytes, _LEAST_TOKEN_BYTES)
    wanted = (-(-step // token_bytes) for step in _STEPS)
    tiles = sorted({min(tile if tile < 8 else -(-tile // 8) * 8, largest) for tile in wanted})
    if caches == 1:
        return [Tiling(tile, SEPARATE) for tile in sorted({*tiles, largest})]
    merged = sorted({tiles[-1], largest})
    return [*(Tiling(tile, SEPARATE) for tile in tiles), *(Tiling(tile, MERGED) for tile in merged)]


def _padded(size: int) -> int:
    return -(-size // 32) * 32


def _shared(tiling: Tiling, caches: int) -> int:
    """Caches that one task writes."""
    return caches if tiling.nbuffer == MERGED else 1


def _tasks(tiling: Tiling, num_tokens: int, caches: int) -> int:
    return -(-num_tokens // tiling.tokens) * caches // _shared(tiling, caches)


def _cycles(tiling: Tiling, num_tokens: int, row_bytes: int, groups: int, caches: int) -> float:
    """What one round costs: loads of index and rows, dispatches, and the stores of the longest task."""
    shared = _shared(tiling, caches)
    rows = min(tiling.tokens, num_tokens) * groups * shared
    dispatches = min(_tasks(tiling, num_tokens, caches), _DISPATCHES)
    return _LOAD * (1 + shared) + _DISPATCH * dispatches + rows * (row_bytes / _BYTES_A_CYCLE + _ROW_STORE)
