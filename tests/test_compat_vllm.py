"""vLLM's calls: its signatures, its test matrix, its padding, and what users of such calls have reported."""

import itertools

import _checkout  # noqa: F401
import pytest
import torch
from compat_cases import check, fused, generator, parameters, sample
from sim_cases import memory, noise

from scatter_pa_kv_cache import InvalidParameterError, ScatterPaKvCacheError
from scatter_pa_kv_cache.compat import concat_and_cache_mla, reshape_and_cache_flash

ONE = torch.ones(1)
HALF, BHALF = torch.float16, torch.bfloat16


def nhd(blocks, block_size, heads, size, dtype, random):
    return noise((blocks, block_size, heads, size), dtype, random)


def hnd(blocks, block_size, heads, size, dtype, random):
    return noise((blocks, heads, block_size, size), dtype, random).permute(0, 2, 1, 3)


def flash(key, value, caches, slots):
    """The call, against golden on the tokens that have a slot."""
    tokens = len(slots)
    check(
        lambda: reshape_and_cache_flash(key, value, *caches, slots, "auto", ONE, ONE),
        key[:tokens],
        value[:tokens],
        caches,
        slots,
    )


def test_signatures():
    assert parameters(reshape_and_cache_flash) == (
        "(key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale)"
    )
    assert parameters(concat_and_cache_mla) == "(kv_c, k_pe, kv_cache, slot_mapping, kv_cache_dtype, scale)"


# block size, head size, dtype, layout, blocks: every value of vLLM's matrix, then all combinations
SOME = [
    (8, 80, torch.float32, nhd, 512),
    (32, 256, BHALF, nhd, 512),
    (16, 256, torch.float32, hnd, 512),
    (8, 64, BHALF, hnd, 5000),
]
ALL = [
    case
    for case in itertools.product((8, 16, 32), (64, 80, 256), (BHALF, torch.float32), (nhd, hnd), (512,))
    if case not in SOME
]


@pytest.mark.parametrize(
    ("block_size", "size", "dtype", "layout", "blocks"),
    SOME + [pytest.param(*case, marks=pytest.mark.slow) for case in ALL],
)
def test_flash_matrix(block_size, size, dtype, layout, blocks):
    random = generator()
    key, value = fused(21, 8, (size, size), dtype, random)
    caches = [layout(blocks, block_size, 8, size, dtype, random) for _ in range(2)]
    flash(key, value, caches, sample(21, blocks * block_size, random))


@pytest.mark.parametrize(
    ("slots", "tokens"),
    [
        ([0, 1, -1, -1], 4),
        ([-1, -1, -1], 3),
        ([4, 0, 7, -1, 2], 8),
        ([6, 1, 3, -1, -1, -1, -1, -1], 8),
        ([], 3),
        ([], 0),
    ],
    ids=["padding", "padding alone", "a longer key", "a fixed buffer", "no slots", "no tokens"],
)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_tokens_are_counted_by_the_slots(slots, tokens, dtype):
    random = generator()
    key, value = fused(tokens, 2, (16, 16), BHALF, random)
    caches = [nhd(2, 4, 2, 16, BHALF, random) for _ in range(2)]
    flash(key, value, caches, torch.tensor(slots, dtype=dtype))


@pytest.mark.parametrize("block_size", [1, 7])
@pytest.mark.parametrize("layout", [nhd, hnd])
def test_block_sizes(block_size, layout):
    random = generator()
    key, value = fused(5, 2, (16, 16), BHALF, random)
    caches = [layout(9, block_size, 2, 16, BHALF, random) for _ in range(2)]
    flash(key, value, caches, sample(5, 9 * block_size, random))


@pytest.mark.parametrize("sizes", [(192, 128), (128, 192), (7, 7)])
def test_head_sizes(sizes):
    random = generator()
    key, value = fused(4, 2, sizes, HALF, random)
    caches = [nhd(3, 4, 2, size, HALF, random) for size in sizes]
    flash(key, value, caches, torch.tensor([11, 0, -1, 5]))


def test_interleaved_caches():
    random = generator()
    kv = noise((6, 2, 16, 2, 64), BHALF, random)
    key, value = fused(3, 2, (64, 64), BHALF, random)
    flash(key, value, [kv[:, 0], kv[:, 1]], torch.tensor([33, 2, -1]))


def test_padded_blocks():
    random = generator()
    base = noise((4, 8 * 2 * 16 + 64), BHALF, random)
    caches = [noise((4, 8, 2, 16), BHALF, random), base.as_strided((4, 8, 2, 16), (8 * 2 * 16 + 64, 32, 16, 1))]
    key, value = fused(3, 2, (16, 16), BHALF, random)
    flash(key, value, caches, torch.tensor([31, 8, 0]))


def test_transposed_sources():
    random = generator()
    key, value = (noise((2, 5, 16), BHALF, random).transpose(0, 1) for _ in range(2))
    flash(key, value, [nhd(3, 4, 2, 16, BHALF, random) for _ in range(2)], sample(5, 12, random))


@pytest.mark.parametrize(
    ("source", "cache"), [(BHALF, HALF), (torch.uint8, torch.float8_e4m3fn), (HALF, torch.uint8), (HALF, torch.float32)]
)
def test_a_cache_of_another_dtype_is_refused(source, cache):
    key = torch.zeros(2, 1, 16, dtype=source)
    caches = torch.zeros(2, 1, 4, 1, 16, dtype=cache)
    with pytest.raises(InvalidParameterError, match=r"key_cache is .*; it must have key's dtype"):
        reshape_and_cache_flash(key, key, *caches, torch.tensor([0, 1]), "auto", ONE, ONE)
    assert not memory(caches).any()


@pytest.mark.parametrize("name", ["fp8", "fp8_e4m3", "fp8_e5m2", "nvfp4", "fp8_ds_mla", "bfloat16", ""])
def test_another_cache_dtype_is_refused_by_name(name):
    key, caches = torch.ones(1, 1, 16), torch.zeros(2, 1, 4, 1, 16)
    with pytest.raises(InvalidParameterError, match=f"kv_cache_dtype is '{name}'; it must be 'auto'"):
        reshape_and_cache_flash(key, key, *caches, torch.tensor([0]), name, ONE, ONE)
    with pytest.raises(InvalidParameterError, match=f"kv_cache_dtype is '{name}'; it must be 'auto'"):
        concat_and_cache_mla(key[0], key[0], torch.zeros(1, 4, 32), torch.tensor([0]), name, ONE)


@pytest.mark.parametrize("short", ["key", "value"])
def test_more_slots_than_tokens_are_refused(short):
    key, value = torch.ones(3, 1, 16), torch.ones(3, 1, 16)
    if short == "key":
        key = key[:2]
    else:
        value = value[:2]
    caches = torch.zeros(2, 1, 4, 1, 16)
    with pytest.raises(InvalidParameterError, match=f"{short} has 2 tokens and slot_mapping 3 slots"):
        reshape_and_cache_flash(key, value, *caches, torch.tensor([0, 1, 2]), "auto", ONE, ONE)
    assert not caches.any()


@pytest.mark.parametrize(("slot", "words"), [(4, "must be less than 4"), (1, "are both 1")])
def test_slots_that_vllm_does_not_check(slot, words):
    key, caches = torch.ones(2, 1, 16), torch.zeros(2, 1, 4, 1, 16)
    with pytest.raises(ScatterPaKvCacheError, match=words):
        reshape_and_cache_flash(key, key, *caches, torch.tensor([1, slot]), "auto", ONE, ONE)
    assert not caches.any()


def mla(kv_c, k_pe, kv_cache, slots):
    """The call, against golden on both parts of the cache."""
    tokens, rank = len(slots), kv_c.shape[1]
    rows = kv_cache.unsqueeze(2)
    check(
        lambda: concat_and_cache_mla(kv_c, k_pe, kv_cache, slots, "auto", ONE),
        kv_c[:tokens, None],
        k_pe[:tokens, None],
        [rows[..., :rank], rows[..., rank:]],
        slots,
    )


@pytest.mark.parametrize(("rank", "dtype"), [(512, BHALF), (256, torch.float32)])
def test_mla_matrix(rank, dtype):
    random = generator()
    kv_c, k_pe = noise((42, rank), dtype, random), noise((42, 64), dtype, random)
    mla(kv_c, k_pe, noise((8, 16, rank + 64), dtype, random), sample(42, 128, random))


def test_mla_of_one_layer_among_others_with_padding():
    random = generator()
    kv_c, k_pe = noise((6, 576), HALF, random).split([512, 64], -1)
    mla(kv_c, k_pe, noise((5, 3, 4, 576), HALF, random)[:, 1], torch.tensor([17, -1, 0, 3]))


def test_mla_refuses_what_does_not_fit():
    kv_c, k_pe, slots = torch.ones(2, 32), torch.ones(2, 16), torch.tensor([0, 1])
    cases = [
        ("kv_cache has shape", kv_c, k_pe, torch.zeros(2, 4, 32)),
        ("kv_cache has shape", kv_c, k_pe, torch.zeros(2, 4, 1, 48)),
        ("k_pe has shape", kv_c, k_pe[:, None], torch.zeros(2, 4, 48)),
        ("k_pe has 1 tokens", kv_c, k_pe[:1], torch.zeros(2, 4, 48)),
    ]
    for words, latents, rotary, cache in cases:
        with pytest.raises(InvalidParameterError, match=words):
            concat_and_cache_mla(latents, rotary, cache, slots, "auto", ONE)
        assert not cache.any()
