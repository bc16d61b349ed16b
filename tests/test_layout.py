"""Row layouts: where rows lie, for dense and strided caches of every layout, and which caches are refused."""

import _checkout  # noqa: F401
import pytest
import torch

from scatter_pa_kv_cache.errors import TilingError
from scatter_pa_kv_cache.indexing import indexes_of, row_index
from scatter_pa_kv_cache.layout import RowLayout, row_layout

# (blocks, slots, groups from outer to inner) of [NB, BS, H, D], [NB, H, BS, D] and PA_NZ's [NB, H*D/L, BS, L] and
# [NB, H, D/L, BS, L]
AXES = {"Norm": (0, 1, (2,)), "NHSD": (0, 2, (1,)), "PA_NZ 4-D": (0, 2, (1,)), "PA_NZ 5-D": (0, 3, (1, 2))}


def address(cache: torch.Tensor, axes: str, slot: int, group: tuple[int, ...]) -> int:
    """Element where the run of one slot and group begins, counted from the cache's first."""
    block_axis, slot_axis, group_axes = AXES[axes]
    block_size = cache.shape[slot_axis]
    at = slot // block_size * cache.stride(block_axis) + slot % block_size * cache.stride(slot_axis)
    return at + sum(place * cache.stride(axis) for place, axis in zip(group, group_axes, strict=True))


LAYOUTS = {
    "norm": ("Norm", torch.zeros(3, 4, 2, 8), 16, 1),
    "norm, one head": ("Norm", torch.zeros(3, 4, 1, 8), 8, 1),
    "norm, one block": ("Norm", torch.zeros(1, 4, 2, 8), 16, 1),
    "norm, one block of any stride": ("Norm", torch.zeros(64).as_strided((1, 4, 2, 8), (7, 16, 8, 1)), 16, 1),
    "norm, one head of any stride": ("Norm", torch.zeros(96).as_strided((3, 4, 1, 8), (32, 8, 3, 1)), 8, 1),
    "norm, one element of any stride": ("Norm", torch.zeros(24).as_strided((3, 4, 2, 1), (8, 2, 1, 5)), 2, 1),
    "norm, one slot a block": ("Norm", torch.zeros(3, 1, 2, 8), 16, 1),
    "interleaved": ("Norm", torch.zeros(3, 2, 4, 2, 8)[:, 1], 16, 1),
    "two interleaved blocks": ("Norm", torch.zeros(2, 2, 4, 2, 8)[:, 1], 16, 1),
    "layers between": ("Norm", torch.zeros(3, 5, 4, 2, 8)[:, 3], 16, 1),
    "padded blocks": ("Norm", torch.zeros(3, 4 * 16 + 8)[:, :64].unflatten(1, (4, 2, 8)), 8, 2),
    "key and value in one row": ("Norm", torch.zeros(3, 4, 2, 12)[..., :8], 4, 4),
    "heads outside slots": ("Norm", torch.zeros(3, 2, 4, 8).transpose(1, 2), 8, 2),
    "slots outside blocks": ("Norm", torch.zeros(4, 3, 2, 8).transpose(0, 1), 16, 1),
    "slots outside interleaved blocks": ("Norm", torch.zeros(4, 3, 2, 2, 8)[:, :, 1].transpose(0, 1), 16, 1),
    "one gap a row": ("Norm", torch.zeros(12).as_strided((2, 2, 1, 2), (6, 3, 3, 1)), 1, 2),
    "one gap a head": ("Norm", torch.zeros(24).as_strided((2, 2, 2, 2), (12, 6, 3, 1)), 1, 4),
    "nhsd": ("NHSD", torch.zeros(3, 2, 4, 8), 8, 2),
    "nz 4-D": ("PA_NZ 4-D", torch.zeros(3, 6, 4, 8), 8, 6),
    "nz 5-D": ("PA_NZ 5-D", torch.zeros(3, 2, 3, 4, 8), 8, 6),
    "nz, one slot a block": ("PA_NZ 4-D", torch.zeros(3, 6, 1, 8), 48, 1),
    "nz 5-D, interleaved": ("PA_NZ 5-D", torch.zeros(3, 2, 2, 3, 4, 8)[:, 0], 8, 6),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_begin_where_elements_lie(name: str) -> None:
    axes, cache, row, groups = LAYOUTS[name]
    layout = row_layout("key_cache", axes, cache)
    assert (layout.row, layout.groups) == (row, groups)
    block_axis, slot_axis, group_axes = AXES[axes]
    capacity = cache.shape[block_axis] * cache.shape[slot_axis]
    index = layout.index(torch.arange(capacity)).view(capacity, groups)
    assert index.dtype == torch.int64
    places = torch.cartesian_prod(*(torch.arange(cache.shape[axis]) for axis in group_axes)).view(-1, len(group_axes))
    for slot in range(capacity):
        runs = [address(cache, axes, slot, tuple(place)) for place in places.tolist()]
        begins = [run + part for run in runs for part in range(0, cache.shape[-1], row)]
        if len(begins) > groups:  # neighbouring runs were merged into longer rows
            begins = begins[:: len(begins) // groups]
        assert (index[slot] * row).tolist() == begins


@pytest.mark.parametrize("name", LAYOUTS)
def test_cover_is_the_memory_itself(name: str) -> None:
    axes, cache, row, _ = LAYOUTS[name]
    layout = row_layout("key_cache", axes, cache)
    cover = layout.cover(cache)
    assert cover.data_ptr() == cache.data_ptr()
    assert cover.shape == (layout.num_rows, row)
    assert cover.is_contiguous()


def test_padding_is_minus_one_for_each_group() -> None:
    layout = row_layout("key_cache", "NHSD", torch.zeros(3, 2, 4, 8))
    index = layout.index(torch.tensor([5, -1, -(2**31)], dtype=torch.int32))
    assert index.dtype == torch.int32
    assert index.tolist() == [[9, 13, -1, -1, -1, -1]]


@pytest.mark.parametrize("shape", [(2, 4, 2, 8), (1, 4, 2, 8), (4, 1, 2, 8), (1, 1, 2, 8)], ids=str)
def test_dense_slots_are_the_index_itself(shape: tuple[int, ...]) -> None:
    slots = torch.tensor([3, -1, 0])
    index = row_layout("key_cache", "Norm", torch.zeros(shape)).index(slots)
    assert index.data_ptr() == slots.data_ptr()
    assert index.tolist() == [[3, -1, 0]]


def test_one_block_ends_where_another_could_begin() -> None:
    layout = row_layout("key_cache", "Norm", torch.zeros(1, 4, 2, 2, 8)[:, :, 0])
    assert layout == RowLayout(row=16, block_size=4, block_rows=8, slot_rows=2, group_rows=(0,), num_rows=7)


def test_figures_are_integers() -> None:
    """Rows of a large cache are no floats."""
    for axes, cache, _, _ in LAYOUTS.values():
        layout = row_layout("key_cache", axes, cache)
        figures = (layout.row, layout.block_size, layout.block_rows, layout.slot_rows, layout.num_rows)
        assert set(map(type, (*figures, *layout.group_rows))) == {int}


def test_split_rows_are_the_same_memory() -> None:
    layout = row_layout("key_cache", "NHSD", torch.zeros(3, 2, 4, 8))
    assert layout == RowLayout(row=8, block_size=4, block_rows=8, slot_rows=1, group_rows=(0, 4), num_rows=24)
    halves = RowLayout(row=4, block_size=4, block_rows=16, slot_rows=2, group_rows=(0, 1, 8, 9), num_rows=48)
    assert layout.split(2) == halves


def test_rows_beyond_31_bits_need_int64() -> None:
    cache = torch.empty(2**28, 16, 1, 1, device="meta").as_strided((2**27, 16, 1, 1), (32, 1, 1, 1))
    layout = row_layout("key_cache", "Norm", cache)
    assert layout.num_rows == 32 * (2**27 - 1) + 16
    (index,) = indexes_of((layout,), torch.tensor([2**31 - 1], dtype=torch.int32))
    assert index.dtype == torch.int64
    assert index.tolist() == [[32 * (2**27 - 1) + 15]]


def test_wide_rows_are_split() -> None:
    layout = row_layout("key_cache", "Norm", torch.empty(2, 4, 1, 8192 * 3, dtype=torch.float32), 192 * 1024 // 2)
    assert (layout.row, layout.groups) == (8192 * 3, 1)
    layout = row_layout("key_cache", "Norm", torch.empty(2, 4, 4, 8192 * 3, dtype=torch.float32), 192 * 1024 // 2)
    assert (layout.row, layout.group_rows) == (8192 * 3, (0, 1, 2, 3))
    layout = row_layout("key_cache", "Norm", torch.empty(2, 4, 1, 7, dtype=torch.float32), 3 * 4)
    assert (layout.row, layout.group_rows) == (1, (0, 1, 2, 3, 4, 5, 6))


DENSE = "it must be 1, a row must lie dense in memory. [layout]"
APART = "its elements overlap in memory, and a cache must give each of them a place of its own. [layout]"
REFUSED = {
    "last axis strided": (
        torch.zeros(3, 4, 8, 2).transpose(2, 3),
        f"key_cache has stride 2 along its last axis: {DENSE}",
    ),
    "last axis of two strided": (
        torch.zeros(3, 1, 1, 6)[..., ::3],
        f"key_cache has stride 3 along its last axis: {DENSE}",
    ),
    "expanded blocks": (
        torch.zeros(1, 4, 2, 8).expand(3, 4, 2, 8),
        f"key_cache has shape [3, 4, 2, 8] and strides [0, 16, 8, 1]: {APART}",
    ),
    "two expanded blocks": (
        torch.zeros(1, 4, 2, 8).expand(2, 4, 2, 8),
        f"key_cache has shape [2, 4, 2, 8] and strides [0, 16, 8, 1]: {APART}",
    ),
    "overlapping blocks": (
        torch.zeros(400).as_strided((3, 4, 2, 8), (32, 16, 8, 1)),
        f"key_cache has shape [3, 4, 2, 8] and strides [32, 16, 8, 1]: {APART}",
    ),
    "blocks that share one element": (
        torch.zeros(400).as_strided((3, 4, 2, 8), (63, 16, 8, 1)),
        f"key_cache has shape [3, 4, 2, 8] and strides [63, 16, 8, 1]: {APART}",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_reason(name: str) -> None:
    cache, sentence = REFUSED[name]
    with pytest.raises(TilingError) as refusal:
        row_layout("key_cache", "Norm", cache)
    assert str(refusal.value) == sentence
    assert (refusal.value.code, refusal.value.rule) == (561002, "layout")


def test_one_index_serves_caches_of_one_layout() -> None:
    slots = torch.tensor([1, 5])
    key_cache, value_cache = torch.zeros(2, 4, 2, 8), torch.zeros(2, 4, 2, 6)
    shared = row_index(slots, key_cache, value_cache)
    assert shared.indexes[0] is shared.indexes[1]
    packed = torch.zeros(2, 4, 2, 14)
    shared = row_index(slots, packed[..., :8], packed[..., 8:])
    assert [index.shape for index in shared.indexes] == [(1, 16), (1, 12)]
