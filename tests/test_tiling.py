"""The tile rule: limits of the unified buffer, few kernels, and one round of the cores wherever a tile allows it."""

import _checkout  # noqa: F401
import pytest

from scatter_pa_kv_cache.kernels.tiling import MERGED, SEPARATE, VECTOR_CORES, choose_tiling, largest_tile, tilings

TOKENS = (1, 2, 8, 31, 32, 64, 128, 256, 512, 1000, 2633, 4096, 7902, 16384, 65536)
ROW_BYTES = (2, 26, 200, 256, 1024, 1152, 2048, 8192, 16384, 32768, 98304)


@pytest.mark.parametrize(
    ("row_bytes", "index_bytes", "largest"),
    # found by compiling this tile and one more of the kernel for scenario 2
    [(256, 4, 756), (256, 8, 744), (1024, 4, 191), (1024, 8, 190), (1152, 4, 170), (8192, 4, 23), (32768, 4, 5)],
)
def test_the_largest_tile_is_what_compiles(row_bytes: int, index_bytes: int, largest: int) -> None:
    assert largest_tile(row_bytes, index_bytes) == largest


@pytest.mark.parametrize("row_bytes", ROW_BYTES)
@pytest.mark.parametrize("index_bytes", [4, 8])
@pytest.mark.parametrize("groups", [1, 3, 32])
@pytest.mark.parametrize("caches", [1, 2])
def test_few_kernels_that_all_fit(row_bytes: int, index_bytes: int, groups: int, caches: int) -> None:
    most = largest_tile(row_bytes, index_bytes, groups)
    if most == 0:
        pytest.skip("a token of that many rows does not fit")
    options = tilings(row_bytes, index_bytes, groups, caches)
    assert 1 <= len(options) <= 6
    assert all(1 <= option.tokens <= most for option in options)
    chosen = {choose_tiling(tokens, row_bytes, index_bytes, groups, caches) for tokens in TOKENS}
    assert chosen <= set(options)


@pytest.mark.parametrize("num_tokens", TOKENS)
def test_one_round_where_a_tile_allows_it(num_tokens: int) -> None:
    tile, nbuffer = choose_tiling(num_tokens, 1024, 4)
    tasks = -(-num_tokens // tile) * (1 if nbuffer == MERGED else 2)
    most = largest_tile(1024, 4) // 8 * 8
    assert tasks <= VECTOR_CORES or (tile, nbuffer) == (most, MERGED)


@pytest.mark.parametrize(
    ("num_tokens", "tile", "nbuffer"),
    [(1, 4, SEPARATE), (256, 16, SEPARATE), (2633, 112, SEPARATE), (7902, 184, MERGED), (16384, 184, MERGED)],
)
def test_what_the_field_shape_gets(num_tokens: int, tile: int, nbuffer: tuple) -> None:
    assert choose_tiling(num_tokens, 1024, 4) == (tile, nbuffer)


@pytest.mark.parametrize("num_tokens", TOKENS)
def test_a_tile_holds_the_least_it_should_if_any_can(num_tokens: int) -> None:
    assert choose_tiling(num_tokens, 768, 4, least=128).tokens >= 128
    assert choose_tiling(num_tokens, 8192, 4, least=128).tokens == 16  # 128 of them do not fit


@pytest.mark.parametrize("num_tokens", [65, 193])
def test_the_tail_configs_have_a_tail_of_one_token(num_tokens: int) -> None:
    assert num_tokens % choose_tiling(num_tokens, 256, 4).tokens == 1
