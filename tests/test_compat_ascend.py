"""torch_npu's calls: their signatures, the shapes of their own tests, and what their users have reported."""

import _checkout  # noqa: F401
import pytest
import rule_cases
import torch
from compat_cases import check, fused, generator, parameters, sample
from sim_cases import memory, noise, twin

from scatter_pa_kv_cache import InvalidParameterError, TilingError, scatter_pa_kv_cache
from scatter_pa_kv_cache.compat import (
    _npu_reshape_and_cache,
    _npu_reshape_and_cache_siso,
    npu_scatter_pa_kv_cache,
    npu_scatter_pa_kv_cache_functional,
)
from scatter_pa_kv_cache.golden import key_only

HALF, BHALF = torch.float16, torch.bfloat16
OPTIONS = "*, compress_lens=None, compress_seq_offsets=None, seq_lens=None, cache_mode='PA_NZ'"


def test_signatures():
    names = "key, value, key_cache, value_cache, slot_mapping"
    assert parameters(npu_scatter_pa_kv_cache) == f"({names}, {OPTIONS})"
    assert parameters(npu_scatter_pa_kv_cache_functional) == f"({names}, {OPTIONS})"
    assert parameters(_npu_reshape_and_cache) == "(key, value, key_cache, value_cache, slot_indices)"
    assert parameters(_npu_reshape_and_cache_siso) == "(key, key_cache, slot_indices)"


@pytest.mark.parametrize("rank", [4, 5])
@pytest.mark.parametrize(("value_size", "block_size"), [(32, 32), (64, 32), (64, 64), (64, 128)])
def test_pa_nz_is_the_default(value_size, block_size, rank):
    random = generator()
    key, value = (noise((16, 4, size), HALF, random) for size in (32, value_size))
    shapes = [(2, 4, size // 16, block_size, 16) for size in (32, value_size)]
    caches = [noise(shape, HALF, random) for shape in shapes]
    if rank == 4:
        caches = [cache.flatten(1, 2) for cache in caches]
    slots = sample(16, 2 * block_size, random, torch.int32)
    slots[3] = -1
    check(lambda: npu_scatter_pa_kv_cache(key, value, *caches, slots), key, value, caches, slots, golden="pa_nz")


@pytest.mark.parametrize("mode", ["Norm", None])
def test_norm(mode):
    random = generator()
    key, value = fused(16, 4, (32, 32), HALF, random)
    caches = [noise((2, 32, 4, 32), HALF, random) for _ in range(2)]
    slots = sample(16, 64, random, torch.int32)
    check(
        lambda: npu_scatter_pa_kv_cache(key, value, *caches, slots, cache_mode=mode),
        key,
        value,
        caches,
        slots,
    )


@pytest.mark.parametrize("slots", [[0, -1, 3], [-1, -1, -1], []])
def test_padding_and_no_tokens(slots):
    random = generator()
    key = noise((len(slots), 1, 8), HALF, random)
    caches = [noise((2, 4, 1, 8), HALF, random) for _ in range(2)]
    slots = torch.tensor(slots, dtype=torch.int32)
    check(lambda: npu_scatter_pa_kv_cache(key, key, *caches, slots, cache_mode="Norm"), key, key, caches, slots)
    check(lambda: _npu_reshape_and_cache(key, key, *caches, slots), key, key, caches, slots)


def test_strided_sources_and_slots():
    random = generator()
    key, value = (noise((2, 4, 16), BHALF, random).transpose(0, 1) for _ in range(2))
    caches = [noise((2, 8, 2, 16), BHALF, random) for _ in range(2)]
    slots = torch.arange(8)[::2]
    check(lambda: npu_scatter_pa_kv_cache(key, value, *caches, slots, cache_mode="Norm"), key, value, caches, slots)


@pytest.mark.parametrize("heads", [1, 2])
def test_norm_caches_under_the_default_are_refused_with_the_remedy(heads):
    random = generator()
    key = noise((3, heads, 64), HALF, random)
    caches = [noise((4, 16, heads, 64), HALF, random) for _ in range(2)]
    before = memory(caches[0]).clone()
    with pytest.raises(TilingError, match=r"\[NB, BS, H, D\]: pass cache_mode='Norm'") as caught:
        npu_scatter_pa_kv_cache(key, key, *caches, torch.tensor([0, 1, 2]))
    assert caught.value.rule.startswith("N")
    assert torch.equal(memory(caches[0]), before)


def test_other_refusals_stay_as_they_are():
    case = rule_cases.norm()
    arguments = (case["key"], case["value"], case["key_cache"], case["value_cache"])
    for slots in (torch.tensor([0, 1]), torch.tensor([0, 1, 2, 3])):
        with pytest.raises(TilingError, match=r"slot_mapping has . slots; it must have one for each") as caught:
            npu_scatter_pa_kv_cache(*arguments, slots, cache_mode="Norm")
        assert "pass cache_mode" not in str(caught.value)
    with pytest.raises(InvalidParameterError, match="key_cache is bfloat16"):
        npu_scatter_pa_kv_cache(case["key"], case["value"], case["key_cache"].bfloat16(), *arguments[3:], slots)


@pytest.mark.parametrize("name", ["four_d", "four_d_alibi"])
def test_compressed_by_the_tensors_that_are_given(name):
    case = getattr(rule_cases, name)()
    case.pop("scatter_mode", None)
    expected = twin(case)
    scatter_pa_kv_cache(**expected)
    names = ("key", "value", "key_cache", "value_cache", "slot_mapping")
    npu_scatter_pa_kv_cache(
        *(case[name] for name in names),
        compress_lens=case["compress_lens"],
        compress_seq_offsets=case.get("compress_seq_offset"),
        seq_lens=case["seq_lens"],
        cache_mode="Norm",
    )
    for cache in ("key_cache", "value_cache"):
        assert torch.equal(memory(case[cache]), memory(expected[cache]))


def test_functional_writes_clones():
    random = generator()
    key, value = fused(3, 2, (16, 16), BHALF, random)
    kv = noise((4, 2, 8, 2, 16), BHALF, random)
    before, slots = kv.clone(), torch.tensor([31, -1, 2])
    expected = twin({"kv": kv})["kv"]
    scatter_pa_kv_cache(key, expected[:, 0], slots, value, expected[:, 1])
    clones = npu_scatter_pa_kv_cache_functional(key, value, kv[:, 0], kv[:, 1], slots, cache_mode="Norm")
    assert torch.equal(memory(kv), memory(before))
    for number, clone in enumerate(clones):
        assert clone.is_contiguous()
        assert torch.equal(memory(clone), memory(expected[:, number].contiguous()))


@pytest.mark.parametrize(
    ("sizes", "blocks"), [((177, 25), 535), pytest.param((254, 255), 53535, marks=pytest.mark.slow)]
)
def test_reshape_and_cache_of_odd_sizes(sizes, blocks):
    random = generator()
    key, value = (noise((14, 1, size), HALF, random) for size in sizes)
    caches = [noise((blocks, 16, 1, size), HALF, random) for size in sizes]
    slots = sample(14, blocks * 16, random, torch.int32)
    check(lambda: _npu_reshape_and_cache(key, value, *caches, slots), key, value, caches, slots)


@pytest.mark.parametrize("blocks", [35, pytest.param(53535, marks=pytest.mark.slow)])
def test_reshape_and_cache_of_pa_nz_views(blocks):
    random = generator()
    key, value = noise((14, 1, 512), torch.int8, random), noise((14, 1, 64), BHALF, random)
    caches = [noise((blocks, 16, 128, 32), torch.int8, random), noise((blocks, 4, 128, 16), BHALF, random)]
    slots = sample(14, blocks * 128, random, torch.int32)
    check(lambda: _npu_reshape_and_cache(key, value, *caches, slots), key, value, caches, slots, golden="pa_nz")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_siso(dtype):
    random = generator()
    key, cache = noise((16, 16, 131), HALF, random), noise((8, 16, 16, 131), HALF, random)
    slots = sample(16, 128, random, dtype)
    slots[0] = -1
    expected = cache.clone()
    key_only.reference(key, expected, slots)
    assert _npu_reshape_and_cache_siso(key, cache, slots) is None
    assert torch.equal(memory(cache), memory(expected))


@pytest.mark.slow
def test_a_slot_past_two_to_the_31_elements():
    cache = torch.zeros(16385, 128, 1, 1024, dtype=torch.int8)
    key = torch.ones(2, 1, 1024, dtype=torch.int8)
    _npu_reshape_and_cache_siso(key, cache, torch.tensor([16385 * 128 - 1, 16384 * 128], dtype=torch.int32))
    assert cache[16384, [0, 127]].all()
    assert int(cache[16384].count_nonzero()) == 2 * 1024
    assert int(cache[:4].count_nonzero()) == 0
