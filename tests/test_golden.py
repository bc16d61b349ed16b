"""golden/ against the worked examples of the operator's specification (section 7)."""

from __future__ import annotations

import _checkout  # noqa: F401
import pytest
import torch
from torch import Tensor

from scatter_pa_kv_cache.golden import alibi, compress_4d, key_only, nct, nhsd, norm, omni, pa_nz, rope


def ints(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def numbered(*shape: int, scale: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor whose element at an index is the sum of scale * index."""
    axes = torch.meshgrid(*(torch.arange(size) for size in shape), indexing="ij")
    return sum(axis * factor for axis, factor in zip(axes, scale, strict=True)).to(dtype)  # type: ignore[union-attr]


def digests(tensor: Tensor) -> tuple[float, float]:
    flat = tensor.double().flatten()
    return flat.sum().item(), (flat * torch.arange(1, flat.numel() + 1)).sum().item()


@pytest.mark.parametrize("rank", [4, 5])
def test_e1_pa_nz_float32(rank: int) -> None:
    key = numbered(3, 2, 8, scale=(100, 10, 1))
    value = numbered(3, 2, 16, scale=(1000, 100, 1))
    key_cache, value_cache = torch.full((2, 2, 2, 8), -1.0), torch.full((2, 4, 2, 8), -1.0)
    if rank == 5:
        key_cache, value_cache = key_cache.view(2, 2, 1, 2, 8), value_cache.view(2, 2, 2, 2, 8)
    pa_nz.reference(key, key_cache, ints(3, -1, 0), value, value_cache)
    if rank == 5:
        assert value_cache[1, 1, 1, 1, 3] == 111
    key_cache, value_cache = key_cache.view(2, 2, 2, 8), value_cache.view(2, 4, 2, 8)

    def run(first: int) -> Tensor:
        return torch.arange(first, first + 8.0)

    empty = torch.full((8,), -1.0)
    assert (
        key_cache.tolist()
        == torch.stack([run(200), empty, run(210), empty, empty, run(0), empty, run(10)]).view(2, 2, 2, 8).tolist()
    )
    assert value_cache[0, :, 0].tolist() == [run(first).tolist() for first in (2000, 2008, 2100, 2108)]
    assert value_cache[1, :, 1].tolist() == [run(first).tolist() for first in (0, 8, 100, 108)]
    assert (value_cache[0, :, 1] == -1).all()
    assert (value_cache[1, :, 0] == -1).all()
    assert digests(key_cache) == (3440, 49248)
    assert digests(value_cache) == (67616, 2110816)


def test_e1b_pa_nz_int8_key_float16_value() -> None:
    key = (numbered(1, 2, 32, scale=(0, 40, 1)) % 100).to(torch.int8)
    value = (numbered(1, 2, 16, scale=(0, 20, 1)) + 0.5).to(torch.float16)
    key_cache = torch.zeros(1, 2, 2, 32, dtype=torch.int8)
    value_cache = torch.zeros(1, 2, 2, 16, dtype=torch.float16)
    pa_nz.reference(key, key_cache, ints(1), value, value_cache)
    assert key_cache[0, 0, 1, 5] == 5
    assert key_cache[0, 1, 1, 31] == 71
    assert (key_cache[0, 0, 0] == 0).all()
    assert value_cache[0, 1, 1, 15] == 35.5
    assert value_cache[0, 0, 1, 0] == 0.5


E2_KEY_ROWS = [[0, 0], [5, 6], [1, 2], [0, 0]]
E2N_KEY_ROWS = [[[9, 10], [11, 12]], [[2, 3], [4, 5]]]


def e2_key() -> Tensor:
    return torch.tensor([[[1.0, 2]], [[3, 4]], [[5, 6]]])


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_e2_norm(index_dtype: torch.dtype) -> None:
    value = torch.tensor([[[10.0, 11, 12]], [[20, 21, 22]], [[30, 31, 32]]])
    key_cache, value_cache = torch.zeros(2, 2, 1, 2), torch.zeros(2, 2, 1, 3)
    norm.reference(e2_key(), key_cache, ints(2, -1, 1).to(index_dtype), value, value_cache)
    assert key_cache.view(4, 2).tolist() == E2_KEY_ROWS
    assert value_cache.view(4, 3).tolist() == [[0, 0, 0], [30, 31, 32], [10, 11, 12], [0, 0, 0]]


def test_e2n_nct() -> None:
    key = torch.arange(14.0).as_strided((2, 2, 2), (4, 2, 1))
    value = torch.arange(100.0, 110).as_strided((2, 2, 1), (2, 1, 1))
    key_cache, value_cache = torch.full((1, 2, 2, 2), -1.0), torch.full((1, 2, 2, 1), -1.0)
    nct.reference(key, key_cache, ints(1, 0), value, value_cache, strides=(7, 5), offsets=(2, 1))
    assert key_cache[0].tolist() == E2N_KEY_ROWS
    assert value_cache[0].tolist() == [[[106], [107]], [[101], [102]]]


def test_nct_counts_from_the_first_element_of_the_tensor() -> None:
    fused = torch.arange(20.0).view(2, 10)  # a token's row: 4 of something else, then 3 of key, then 3 of value
    key, value = fused[:, 4:7].unsqueeze(1), fused[:, 7:].unsqueeze(1)
    key_cache, value_cache = torch.zeros(1, 2, 1, 3), torch.zeros(1, 2, 1, 3)
    nct.reference(key, key_cache, ints(0, 1), value, value_cache, strides=(10, 10), offsets=(0, 0))
    assert key_cache.flatten().tolist() == [4, 5, 6, 14, 15, 16]
    assert value_cache.flatten().tolist() == [7, 8, 9, 17, 18, 19]


def test_nct_does_not_read_skipped_tokens_nor_past_the_storage() -> None:
    key = torch.arange(8.0).view(2, 1, 4)
    cache = torch.zeros(1, 2, 1, 4)
    key_only.reference(key, cache, ints(1, -1), scatter_mode="Nct", stride=1000, offset=3)
    assert cache.flatten().tolist() == [0, 0, 0, 0, 3, 4, 5, 6]
    with pytest.raises(IndexError):
        key_only.reference(key, cache, ints(1, 0), scatter_mode="Nct", stride=1000, offset=3)


def test_e2v_strided_cache() -> None:
    storage = torch.full((12,), -7.0)
    cache = storage.as_strided((2, 2, 1, 2), (6, 3, 3, 1))
    key = torch.tensor([[[1.0, 2]], [[3, 4]]])
    key_only.reference(key, cache, ints(3, 0))
    assert storage.tolist() == [3, 4, -7, -7, -7, -7, -7, -7, -7, 1, 2, -7]


def test_e6_key_only() -> None:
    cache = torch.zeros(2, 2, 1, 2)
    key_only.reference(e2_key(), cache, ints(2, -1, 1))
    assert cache.view(4, 2).tolist() == E2_KEY_ROWS
    cache = torch.full((1, 2, 2, 2), -1.0)
    key = torch.arange(14.0).as_strided((2, 2, 2), (4, 2, 1))
    key_only.reference(key, cache, ints(1, 0), scatter_mode="Nct", stride=7, offset=2)
    assert cache[0].tolist() == E2N_KEY_ROWS


@pytest.mark.parametrize("arguments", [{"scatter_mode": "Rope"}, {"scatter_mode": "Nct", "stride": 7}])
def test_key_only_refuses(arguments: dict) -> None:
    with pytest.raises(ValueError, match=r"scatter.mode|stride"):
        key_only.reference(e2_key(), torch.zeros(2, 2, 1, 2), ints(2, -1, 1), **arguments)


def test_e7_nhsd() -> None:
    key = numbered(2, 2, 16, scale=(100, 20, 1), dtype=torch.float16)
    key_cache = torch.full((2, 2, 3, 16), -1.0, dtype=torch.float16)
    value_cache = key_cache.clone()
    nhsd.reference(key, key_cache, ints(4, 2), key, value_cache)
    for block, head, place, first in ((1, 0, 1, 0), (1, 1, 1, 20), (0, 0, 2, 100), (0, 1, 2, 120)):
        assert key_cache[block, head, place].tolist() == list(range(first, first + 16))
    assert (key_cache == -1).sum() == 8 * 16
    assert digests(key_cache) == (4192, 328320)
    assert torch.equal(key_cache, value_cache)


E3 = {
    "Rope": [0, 15, 30, 1, 11, 21, 31, 105, 120, 101, 111, 121],
    "Omni": [0, 30, -1, 11, 21, 31, -1, 120, -1, 101, 121, -1],
}


def run_4d(mode: str, rows: int, slots: Tensor, windows: Tensor, offsets: Tensor | None) -> list[float]:
    key = numbered(2, 4, 2, 1, scale=(100, 10, 1, 0))
    cache = torch.full((rows // 4, 4, 1, 1), -1.0)
    value_cache = cache.clone()
    compress_4d.reference(
        key, cache, slots, key, value_cache, scatter_mode=mode, compress_lens=windows, seq_lens=ints(4, 3),
        compress_seq_offset=offsets,
    )  # fmt: skip
    assert torch.equal(cache, value_cache)
    return cache.flatten().tolist()


@pytest.mark.parametrize("mode", ["Rope", "Omni"])
def test_e3_4d_window(mode: str) -> None:
    rows = run_4d(mode, 12, ints(0, 3, 7, 9).view(2, 2), ints(2, 1, 2, 1).view(2, 2), ints(1, 0, 0, 1))
    assert rows == E3[mode]


def test_e3_4d_alibi() -> None:
    rows = run_4d("Alibi", 8, ints(0, 2, 3, 6).view(2, 2), ints(2, 1, 3, 2), None)
    assert rows == [20, 30, 31, 100, 110, 120, 111, 121]


def test_e3_4d_alibi_longer_than_its_sequence() -> None:
    rows = run_4d("Alibi", 8, ints(0, 2, 3, 7).view(2, 2), ints(0, 0, 4, 0).view(2, 2), None)
    assert rows == [-1, -1, -1, -1, 100, 110, 120, -1]


@pytest.mark.parametrize(
    ("mode", "slot", "window", "offset"),
    [("Nct", 0, 1, 0), ("Rope", 0, 2, 3), ("Omni", 0, 1, -2), ("Rope", 0, 1, None), ("Omni", 0, -1, 0)],
)
def test_4d_refuses(mode: str, slot: int, window: int, offset: int | None) -> None:
    key, cache = torch.ones(1, 4, 1, 1), torch.zeros(2, 4, 1, 1)
    with pytest.raises(ValueError, match=r"scatter_mode|compress_"):
        compress_4d.reference(
            key, cache, ints(slot), key, cache, scatter_mode=mode, compress_lens=ints(window), seq_lens=ints(4),
            compress_seq_offset=None if offset is None else ints(offset),
        )  # fmt: skip
    assert (cache == 0).all()


def run_3d(module, tokens: int, blocks: int, slots: Tensor, **lists: Tensor) -> list[float]:
    key = numbered(tokens, 2, 1, scale=(10, 1, 0))
    cache = torch.full((blocks, 4, 1, 1), -1.0)
    value_cache = cache.clone()
    module.reference(key, cache, slots, key, value_cache, **lists)
    assert torch.equal(cache, value_cache)
    return cache.flatten().tolist()


@pytest.mark.parametrize(
    ("slots", "windows", "rows"),
    [
        (ints(0, 3, 4, 6), ints(2, 1, 1, 2), [10, 20, -1, 21, 40, -1, 31, 41]),
        (ints(0, -1, 4, 6), ints(2, 1, 0, 2), [10, 20, -1, -1, -1, -1, 31, 41]),
    ],
    ids=["E4", "E4b"],
)
def test_e4_alibi(slots: Tensor, windows: Tensor, rows: list[int]) -> None:
    assert run_3d(alibi, 5, 2, slots, compress_lens=windows, seq_lens=ints(3, 2)) == rows


E5 = {
    "E5 Rope": (
        rope, 7, 3, ints(0, 3, 7, 9), ints(4, 3), ints(2, 2, 2, 1), ints(1, -1, 0, 3),
        [0, 15, 30, 1, 11, 21, 31, 45, 60, 41, 51, 61],
    ),
    "E5 Omni": (
        omni, 7, 3, ints(0, 3, 7, 9), ints(4, 3), ints(2, 2, 2, 1), ints(1, -1, 0, 3),
        [0, 30, -1, 1, 11, 21, 31, 60, -1, 41, 51, 61],
    ),
    "E5b": (
        rope, 7, 4, ints(0, 4, 8, 10), ints(4, 3), ints(0, 2, 3, 1), ints(1, -1, 0, 2),
        [0, 10, 20, 30, 1, 11, 21, 31, 50, -1, 41, 51, 61, -1, -1, -1],
    ),
    "E5c": (
        rope, 3, 2, ints(0, 1, 3, 4, 5, 6), ints(2, 0, 1), ints(2, 2, 0, 1, 1, 0), ints(0, 0, -1, 0, 0, -1),
        [5, 6, -1, -1, -1, 20, 21, -1],
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("module", "tokens", "blocks", "slots", "lengths", "windows", "offsets", "rows"), E5.values(), ids=E5.keys()
)
def test_e5_rope_and_omni(module, tokens, blocks, slots, lengths, windows, offsets, rows) -> None:
    lists = {"compress_lens": windows, "seq_lens": lengths, "compress_seq_offset": offsets}
    assert run_3d(module, tokens, blocks, slots, **lists) == rows


@pytest.mark.parametrize("module", [rope, omni])
def test_negative_slot_skips_the_whole_task(module) -> None:
    lists = {"compress_lens": ints(9, 1), "seq_lens": ints(3), "compress_seq_offset": ints(9, 0)}
    rows = run_3d(module, 3, 1, ints(-1, 0), **lists)
    assert rows == ([1, 11, 21, -1] if module is rope else [11, 21, -1, -1])


@pytest.mark.parametrize("lengths", [ints(4, 2), ints(-1, 3)], ids=["more than T", "negative"])
def test_sequence_lengths_must_fit_the_key(lengths: Tensor) -> None:
    with pytest.raises(ValueError, match="seq_lens"):
        run_3d(alibi, 5, 2, ints(0, 1, 2, 3), compress_lens=ints(1, 1, 1, 1), seq_lens=lengths)
    with pytest.raises(ValueError, match="seq_lens"):
        compress_4d.reference(
            torch.ones(2, 3, 1, 1), torch.ones(2, 4, 1, 1), ints(0, 1), torch.ones(2, 3, 1, 1), torch.ones(2, 4, 1, 1),
            scatter_mode="Alibi", compress_lens=ints(1, 1), seq_lens=lengths,
        )  # fmt: skip


def test_rows_outside_the_cache_are_skipped() -> None:
    key = numbered(4, 1, 1, scale=(1, 0, 0)) + 1
    cache = torch.zeros(1, 2, 1, 1)
    key_only.reference(key, cache, ints(2, 1, -5, 2**31 - 1))
    assert cache.flatten().tolist() == [0, 2]
    assert run_3d(alibi, 3, 1, ints(2, 9), compress_lens=ints(3, 1), seq_lens=ints(3)) == [-1, -1, 0, 10]


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_the_last_of_duplicate_slots_wins(index_dtype: torch.dtype) -> None:
    tokens = 4000
    slots = (torch.arange(tokens) % 7).to(index_dtype)
    key = numbered(tokens, 1, 32, scale=(1, 0, 0), dtype=torch.int32)
    last = [max(range(slot, tokens, 7)) for slot in range(7)] + [-1]
    caches = {
        norm: (torch.full((2, 4, 1, 32), -1, dtype=torch.int32), (0, 1)),
        nhsd: (torch.full((2, 1, 4, 32), -1, dtype=torch.int32), (0, 2)),
        pa_nz: (torch.full((2, 4, 4, 8), -1, dtype=torch.int32), (0, 2)),
    }
    for module, (cache, (block, place)) in caches.items():
        value_cache = cache.clone()
        module.reference(key, cache, slots, key, value_cache)
        rows = cache.movedim((block, place), (0, 1)).reshape(8, 32)
        assert (rows == torch.tensor(last)[:, None]).all()
        assert torch.equal(cache, value_cache)
    # tasks: the later one takes the row
    assert run_3d(alibi, 3, 1, ints(0, 1), compress_lens=ints(3, 2), seq_lens=ints(3)) == [0, 11, 21, -1]


def test_interleaved_caches_are_written_through_their_views() -> None:
    kv = torch.full((2, 2, 4, 1, 3), -1.0)  # key and value blocks in turn, as some engines allocate them
    key = numbered(2, 1, 3, scale=(10, 0, 1))
    norm.reference(key, kv[:, 0], ints(5, 2), -key - 2, kv[:, 1])
    assert kv[1, 0, 1, 0].tolist() == [0, 1, 2]
    assert kv[0, 0, 2, 0].tolist() == [10, 11, 12]
    assert kv[1, 1, 1, 0].tolist() == [-2, -3, -4]
    assert kv[0, 1, 2, 0].tolist() == [-12, -13, -14]
    assert (kv == -1).sum() == kv.numel() - 12
