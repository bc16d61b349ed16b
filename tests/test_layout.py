"""Row layouts: where rows lie, for dense and strided caches of every layout, and which caches are refused."""

import _checkout  # noqa: F401
import pytest
import torch

from scatter_pa_kv_cache.errors import TilingError
from scatter_pa_kv_cache.indexing import indexes_of, row_index
from scatter_pa_kv_cache.layout import AXES, row_layout


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
    "norm, one slot a block": ("Norm", torch.zeros(3, 1, 2, 8), 16, 1),
    "interleaved": ("Norm", torch.zeros(3, 2, 4, 2, 8)[:, 1], 16, 1),
    "layers between": ("Norm", torch.zeros(3, 5, 4, 2, 8)[:, 3], 16, 1),
    "padded blocks": ("Norm", torch.zeros(3, 4 * 16 + 8)[:, :64].unflatten(1, (4, 2, 8)), 8, 2),
    "key and value in one row": ("Norm", torch.zeros(3, 4, 2, 12)[..., :8], 4, 4),
    "heads outside slots": ("Norm", torch.zeros(3, 2, 4, 8).transpose(1, 2), 8, 2),
    "slots outside blocks": ("Norm", torch.zeros(4, 3, 2, 8).transpose(0, 1), 16, 1),
    "one gap a row": ("Norm", torch.zeros(12).as_strided((2, 2, 1, 2), (6, 3, 3, 1)), 1, 2),
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


def test_dense_slots_are_the_index_itself() -> None:
    slots = torch.tensor([3, -1, 0])
    index = row_layout("key_cache", "Norm", torch.zeros(2, 4, 2, 8)).index(slots)
    assert index.data_ptr() == slots.data_ptr()
    assert index.tolist() == [[3, -1, 0]]


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


REFUSED = {
    "last axis strided": torch.zeros(3, 4, 8, 2).transpose(2, 3),
    "expanded blocks": torch.zeros(1, 4, 2, 8).expand(3, 4, 2, 8),
    "overlapping blocks": torch.zeros(400).as_strided((3, 4, 2, 8), (32, 16, 8, 1)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_reason(name: str) -> None:
    with pytest.raises(TilingError, match="key_cache has") as refusal:
        row_layout("key_cache", "Norm", REFUSED[name])
    assert (refusal.value.code, refusal.value.rule) == (561002, "layout")


def test_one_index_serves_caches_of_one_layout() -> None:
    slots = torch.tensor([1, 5])
    key_cache, value_cache = torch.zeros(2, 4, 2, 8), torch.zeros(2, 4, 2, 6)
    shared = row_index(slots, key_cache, value_cache)
    assert shared.indexes[0] is shared.indexes[1]
    packed = torch.zeros(2, 4, 2, 14)
    shared = row_index(slots, packed[..., :8], packed[..., 8:])
    assert [index.shape for index in shared.indexes] == [(1, 16), (1, 12)]
