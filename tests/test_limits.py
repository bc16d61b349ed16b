"""The largest and the smallest calls: addresses and slots beyond 31 bits, a million blocks, one element of everything.

What does not fit in memory is checked as arithmetic, on meta tensors.
"""

from __future__ import annotations

from itertools import product

import _checkout  # noqa: F401
import pytest
import torch
from sim_cases import Case, memory, noise

from scatter_pa_kv_cache import TilingError, plan, row_index, scatter_pa_kv_cache
from scatter_pa_kv_cache.configs import CONFIGS
from scatter_pa_kv_cache.describe import describe
from scatter_pa_kv_cache.indexing import INT32_ROWS, indexes_of
from scatter_pa_kv_cache.layout import AXES, WIDEST_ROW_BYTES, row_layout
from scatter_pa_kv_cache.plans import KernelPlan

HALF = torch.float16
MILLION = 10**6


def begins(cache: torch.Tensor, axes: str, slot: int) -> list[int]:
    """The elements, counted from the cache's first, where the runs of a slot begin, in Python's own integers."""
    block_axis, slot_axis, group_axes = AXES[axes]
    block_size = cache.shape[slot_axis]
    at = slot // block_size * cache.stride(block_axis) + slot % block_size * cache.stride(slot_axis)
    places = product(*(range(cache.shape[axis]) for axis in group_axes))
    steps = [cache.stride(axis) for axis in group_axes]
    return [at + sum(place * step for place, step in zip(group, steps, strict=True)) for group in places]


SHAPES = {
    "Norm": (MILLION, 128, 3, 96),
    "NHSD": (MILLION, 3, 128, 96),
    "PA_NZ 4-D": (MILLION, 12, 128, 16),
    "PA_NZ 5-D": (MILLION, 2, 6, 128, 16),
}
FORMS = {
    "dense": lambda shape: torch.empty(shape, dtype=HALF, device="meta"),
    "one of 61 layers": lambda shape: torch.empty((shape[0], 61, *shape[1:]), dtype=HALF, device="meta")[:, 60],
    "keys beside values": lambda shape: torch.empty((*shape, 2), dtype=HALF, device="meta").flatten(-2)[
        ..., : shape[-1]
    ],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("axes", SHAPES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_rows_of_a_million_blocks(dtype: torch.dtype, axes: str, form: str) -> None:
    cache = FORMS[form](SHAPES[axes])
    layout = row_layout("key_cache", axes, cache)
    last = MILLION * 128 - 1
    slots = [0, 127, 128, last // 2, last - 128, last, -1, -(2**31)]
    (index,) = indexes_of((layout,), torch.tensor(slots, dtype=dtype))
    assert index.dtype == (torch.int64 if layout.num_rows > INT32_ROWS else dtype)
    rows = index.view(len(slots), layout.groups)
    for slot, of_slot in zip(slots, rows.tolist(), strict=True):
        if slot < 0:
            assert max(of_slot) < 0
            continue
        wanted = begins(cache, axes, slot)
        apart = len(wanted) // min(len(wanted), layout.groups)  # runs that adjoin were merged into longer rows
        assert [row * layout.row for row in of_slot] == wanted[::apart]
        assert max(of_slot) < layout.num_rows


def test_a_million_blocks_are_planned() -> None:
    cache = torch.empty(MILLION, 61, 128, 8, 128, dtype=HALF, device="meta")
    call = {
        "key": torch.empty(7, 8, 128, dtype=HALF, device="meta"),
        "key_cache": cache[:, 3],
        "slot_mapping": torch.empty(7, dtype=torch.int32, device="meta"),
    }
    assert "index int64" in describe(call)[1]
    assert f"{61 * 128 * (MILLION - 1) + 128} from the first to the last" in describe(call)[2]
    assert "index int32" in describe(call | {"key_cache": cache[:1000, 3]})[1]


@pytest.mark.parametrize("slot", [2**31 - 1, 2**31, 2**31 + 2**20, 2**40])
def test_slots_beyond_31_bits(slot: int) -> None:
    """int64 slots keep all their bits, whether or not they are rows already."""
    dense = torch.empty(slot // 128 + 1, 128, 1, 8, dtype=HALF, device="meta")
    layered = torch.empty(slot // 128 + 1, 2, 128, 1, 8, dtype=HALF, device="meta")[:, 1]
    slots = torch.tensor([slot, -1])
    assert row_index(slots, dense).indexes[0].tolist() == [[slot, -1]]
    assert row_index(slots, layered).indexes[0].tolist() == [[slot // 128 * 256 + slot % 128, -1]]


def test_tasks_need_slots_of_31_bits() -> None:
    case: Case = {
        "key": torch.empty(4, 2, 8, dtype=HALF, device="meta"),
        "slot_mapping": torch.empty(2, dtype=torch.int64, device="meta"),
        "compress_lens": torch.empty(2, dtype=torch.int64, device="meta"),
        "seq_lens": torch.empty(1, dtype=torch.int64, device="meta"),
        "scatter_mode": "Alibi",
    }
    case["value"] = case["key"]
    for blocks, size in ((2**24, 127), (2**24, 128)):
        cache = torch.empty(blocks, size, 1, 8, dtype=HALF, device="meta")
        call = case | {"key_cache": cache, "value_cache": cache}
        if blocks * size < 2**31:
            assert describe(call)[0].startswith("accepted")
        else:
            with pytest.raises(TilingError, match=f"must have at most {2**31 - 1}"):
                describe(call)


def test_rows_as_wide_as_a_row_may_be() -> None:
    widest = WIDEST_ROW_BYTES // 2
    for width, parts in ((widest, 1), (2 * widest, 2), (widest + 1, None)):
        layout = row_layout("key_cache", "Norm", torch.empty(2, 3, 1, width, dtype=HALF, device="meta"))
        assert layout.row * layout.groups == width
        assert layout.row <= widest
        assert parts in (layout.groups, None)


ONE: dict[str, Case] = {
    "norm": {},
    "nct": {"scatter_mode": "Nct", "strides": (1, 1), "offsets": (0, 0)},
    "alibi": {"scatter_mode": "Alibi"},
    "rope": {"scatter_mode": "Rope"},
    "omni": {"scatter_mode": "Omni"},
}


@pytest.mark.parametrize("slot", [0, -1])
@pytest.mark.parametrize(
    ("mode", "rank"), [(mode, 3) for mode in ONE] + [(mode, 4) for mode in ("alibi", "rope", "omni")]
)
def test_one_element_of_everything(mode: str, rank: int, slot: int) -> None:
    tasks = mode in ("alibi", "rope", "omni")
    random = torch.Generator().manual_seed(0)
    ones = (1,) * rank
    case: Case = ONE[mode] | {name: torch.randn(ones, generator=random).to(HALF) for name in ("key", "value")}
    case |= {name: noise((1, 1, 1, 1), HALF, random) for name in ("key_cache", "value_cache")}
    case["slot_mapping"] = torch.tensor([slot]).view((1,) * (rank - 2))
    if tasks:
        case |= {"compress_lens": torch.ones_like(case["slot_mapping"]), "seq_lens": torch.tensor([1])}
        if mode != "alibi":
            case["compress_seq_offset"] = torch.tensor([0 if mode == "rope" else -1])
    before = [memory(case[name]).clone() for name in ("key_cache", "value_cache")]
    scatter_pa_kv_cache(**case)
    for name, was in zip(("key", "value"), before, strict=True):
        wanted = was if slot < 0 else memory(case[name])
        assert torch.equal(memory(case[f"{name}_cache"]), wanted)


@pytest.mark.parametrize("mode", [{"cache_mode": "PA_NZ"}, {"scatter_mode": "NHSD"}], ids=str)
def test_one_row_of_32_bytes(mode: Case) -> None:
    random = torch.Generator().manual_seed(0)
    key, cache = noise((1, 1, 16), HALF, random), noise((1, 1, 1, 16), HALF, random)
    value_cache = cache.clone()
    scatter_pa_kv_cache(key, cache, torch.tensor([0]), key, value_cache, **mode)
    assert torch.equal(memory(cache), memory(key))
    assert torch.equal(memory(value_cache), memory(key))


def test_65536_tokens_are_planned_and_stand_among_the_slow_configs() -> None:
    (config,) = [config for config in CONFIGS if config.name == "norm_65536_tokens"]
    assert (config.tokens, config.slow) == (65_536, True)
    key, cache = torch.zeros(65_536, 1, 16, dtype=HALF), torch.zeros(513, 128, 1, 16, dtype=HALF)
    slots = torch.randperm(513 * 128, generator=torch.Generator().manual_seed(0))[:65_536]
    planned = plan(key, cache, slots)
    assert isinstance(planned, KernelPlan)
    assert torch.equal(planned.items().slots, slots)


@pytest.mark.slow
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_a_cache_above_two_to_the_31_elements(index: torch.dtype) -> None:
    """Key and value beside each other in blocks, 2.4 GB of addresses, of which a few pages are ever touched."""
    slot, block_size = 3_730_000, 16
    blocks = slot // block_size + 1
    both = torch.zeros(blocks, block_size, 1, 640, dtype=torch.int8)
    assert both.numel() > 2**31
    random = torch.Generator().manual_seed(0)
    key, value = noise((3, 1, 576), torch.int8, random), noise((3, 1, 64), torch.int8, random)
    slots = torch.tensor([slot, -1, slot - block_size], dtype=index)
    scatter_pa_kv_cache(key, both[..., :576], slots, value, both[..., 576:])
    for token, place in ((0, slot), (2, slot - block_size)):
        row = both[place // block_size, place % block_size]
        assert torch.equal(row, torch.cat([key[token], value[token]], dim=-1))
    written = int(key[::2].count_nonzero() + value[::2].count_nonzero())
    assert int(both[-2:].count_nonzero()) == written
    assert not both[: 2**12].any()
    assert not both[-(2**12) : -2].any()


@pytest.mark.slow
def test_a_slot_above_two_to_the_31() -> None:
    """One byte a slot."""
    cache = torch.zeros(2**15 + 1, 2**16, 1, 1, dtype=torch.int8)
    key = torch.tensor([5, 6, 7, 8], dtype=torch.int8).view(4, 1, 1)
    scatter_pa_kv_cache(key, cache, torch.tensor([2**31, 2**31 + 2**16 - 1, -1, 2**31 - 1]))
    flat = cache.view(-1)
    assert flat[[2**31, 2**31 + 2**16 - 1, 2**31 - 1]].tolist() == [5, 6, 8]
    assert int(flat[2**31 - 2**20 :].count_nonzero()) == 3
    assert not flat[: 2**20].any()
