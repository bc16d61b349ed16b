"""FlashInfer's calls: its signatures, its test matrix, its padding, and what its users have reported."""

import _checkout  # noqa: F401
import pytest
import torch
from compat_cases import check, generator, parameters
from sim_cases import memory, noise

from scatter_pa_kv_cache import DataError, InvalidParameterError
from scatter_pa_kv_cache.compat import (
    append_paged_kv_cache,
    append_paged_mla_kv_cache,
    get_batch_indices_positions,
)

HALF, BHALF = torch.float16, torch.bfloat16


def test_signatures():
    tail = "kv_indices, kv_indptr, kv_last_page_len"
    assert parameters(append_paged_kv_cache) == (
        f"(append_key, append_value, batch_indices, positions, paged_kv_cache, {tail}, kv_layout='NHD')"
    )
    assert parameters(append_paged_mla_kv_cache) == (
        f"(append_ckv, append_kpe, batch_indices, positions, ckv_cache, kpe_cache, {tail})"
    )
    assert parameters(get_batch_indices_positions) == "(append_indptr, seq_lens, nnz)"


class Pages:
    """Sequences whose last ``new`` tokens are appended, in pages drawn at random; slots by plain arithmetic."""

    def __init__(self, lengths, new, page, pages, random):
        order = torch.randperm(pages, generator=random).tolist()
        counts = [-(-length // page) for length in lengths]
        starts = [sum(counts[:number]) for number in range(len(counts) + 1)]
        self.kv_indices = torch.tensor(order[: starts[-1]], dtype=torch.int32)
        self.kv_indptr = torch.tensor(starts, dtype=torch.int32)
        self.last = torch.tensor([(length - 1) % page + 1 for length in lengths], dtype=torch.int32)
        tokens = [
            (number, position)
            for number, (length, fresh) in enumerate(zip(lengths, new, strict=True))
            for position in range(length - fresh, length)
        ]
        self.batch_indices = torch.tensor([number for number, _ in tokens], dtype=torch.int32)
        self.positions = torch.tensor([position for _, position in tokens], dtype=torch.int32)
        self.slots = torch.tensor(
            [order[starts[number] + position // page] * page + position % page for number, position in tokens]
        )
        self.tail = (self.kv_indices, self.kv_indptr, self.last)

    def pad(self, *places):
        for place in places:
            self.batch_indices[place] = self.slots[place] = -1


NEW = (45, 8, 25, 22)


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("blocks", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_append_matrix(layout, contiguous, blocks):
    random = generator()
    pages = Pages((45, 308, 25, 22), NEW, 16, blocks, random)
    pages.pad(3, 99)
    heads, size = (32, 128) if blocks == 1000 else (4, 128)
    both = noise((100, 2, heads, size), HALF, random)
    key, value = (part.contiguous() if contiguous else part for part in both.unbind(1))
    cache = noise((blocks, 2, *((16, heads) if layout == "NHD" else (heads, 16)), size), HALF, random)
    caches = cache.unbind(1) if layout == "NHD" else cache.transpose(2, 3).unbind(1)
    check(
        lambda: append_paged_kv_cache(
            key, value, pages.batch_indices, pages.positions, cache, *pages.tail, kv_layout=layout
        ),
        key,
        value,
        caches,
        pages.slots,
    )


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_a_pair_of_caches_with_other_strides_and_sizes(layout):
    random = generator()
    pages = Pages((5, 3), (2, 3), 2, 9, random)
    key, value = noise((5, 2, 24), BHALF, random), noise((5, 2, 8), BHALF, random)
    order = (0, 1, 2, 3) if layout == "NHD" else (0, 2, 1, 3)
    caches = [noise((9, 3, 2, 2, 24), BHALF, random)[:, 1], noise((9, 2, 2, 8), BHALF, random)]
    pair = tuple(cache.permute(order) for cache in caches)
    check(
        lambda: append_paged_kv_cache(key, value, pages.batch_indices, pages.positions, pair, *pages.tail, layout),
        key,
        value,
        caches,
        pages.slots,
    )


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_pages_of_one_slot(dtype):
    random = generator()
    pages = Pages((4, 2), (4, 2), 1, 8, random)
    pages.pad(1, 5)
    key = noise((6, 1, 16), BHALF, random)
    cache = noise((8, 2, 1, 1, 16), BHALF, random)
    indexes = [tensor.to(dtype) for tensor in (pages.batch_indices, pages.positions)]
    tail = [tensor.to(dtype) for tensor in pages.tail]
    check(lambda: append_paged_kv_cache(key, key, *indexes, cache, *tail), key, key, cache.unbind(1), pages.slots)


@pytest.mark.parametrize("live", [0, 3])
def test_padding_alone_and_nothing(live):
    random = generator()
    cache = noise((2, 2, 4, 1, 16), BHALF, random)
    before = cache.clone()
    key, padding = noise((live, 1, 16), BHALF, random), torch.full((live,), -1, dtype=torch.int32)
    tail = (torch.tensor([1]).int(), torch.tensor([0, 1]).int(), torch.tensor([4]).int())
    append_paged_kv_cache(key, key, padding, padding, cache, *tail)
    assert torch.equal(memory(cache), memory(before))


@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize("lengths", [(1, 17, 64), (130, 3)])
def test_mla_matrix(page, lengths):
    random = generator()
    pages = Pages(lengths, [min(length, 20) for length in lengths], page, 140, random)
    pages.pad(0)
    tokens = len(pages.slots)
    ckv, kpe = noise((tokens, 512), HALF, random), noise((tokens, 64), HALF, random)
    caches = [noise((140, page, size), HALF, random) for size in (512, 64)]
    check(
        lambda: append_paged_mla_kv_cache(ckv, kpe, pages.batch_indices, pages.positions, *caches, *pages.tail),
        ckv[:, None],
        kpe[:, None],
        [cache.unsqueeze(2) for cache in caches],
        pages.slots,
    )


def refused(error, words, **changes):
    cache = torch.zeros(4, 2, 2, 1, 16)
    call = {
        "append_key": torch.ones(2, 1, 16),
        "append_value": torch.ones(2, 1, 16),
        "batch_indices": torch.tensor([0, 1]),
        "positions": torch.tensor([0, 3]),
        "paged_kv_cache": cache,
        "kv_indices": torch.tensor([3, 0, 2]),
        "kv_indptr": torch.tensor([0, 1, 3]),
        "kv_last_page_len": None,
    }
    with pytest.raises(error, match=words):
        append_paged_kv_cache(**call | changes)
    assert not cache.any()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_layout": "NDH"}, "kv_layout is 'NDH'; it must be 'NHD' or 'HND'"),
        ({"paged_kv_cache": torch.zeros(4, 2, 1, 16)}, r"paged_kv_cache has shape .* must be \[P, 2, page, H, D\]"),
        ({"paged_kv_cache": (torch.zeros(4, 2, 1, 16), torch.zeros(4, 2, 16))}, "paged_kv_cache's values have shape"),
        ({"append_value": torch.ones(3, 1, 16)}, r"append_value has shape \[3, 1, 16\] and batch_indices \[2\]"),
        ({"append_key": torch.ones(1, 1, 16)}, r"append_key has shape \[1, 1, 16\] and batch_indices \[2\]"),
        ({"positions": torch.tensor([0])}, r"positions has shape \[1\]"),
        ({"kv_indptr": torch.tensor([0.0, 1, 3])}, "kv_indptr is torch.float32; it must be int32 or int64"),
        ({"append_key": torch.ones(2, 1, 16).half()}, "key_cache is float32"),
    ],
)
def test_what_does_not_fit_is_refused(changes, words):
    refused(InvalidParameterError, words, **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"positions": torch.tensor([2, 0])}, r"positions\[0\] is 2; sequence 0 must have a page for it"),
        ({"positions": torch.tensor([0, 4])}, r"positions\[1\] is 4; sequence 1 must have a page for it"),
        ({"batch_indices": torch.tensor([0, 2])}, r"batch_indices\[1\] is 2; it must be less than kv_indptr's 2 rows"),
        ({"kv_indptr": torch.tensor([0])}, r"batch_indices\[0\] is 0; it must be less than kv_indptr's 0 rows"),
    ],
)
def test_tokens_past_their_pages_are_refused(changes, words):
    refused(DataError, words, **changes)


def test_batch_indices_and_positions():
    indptr, lengths = torch.tensor([0, 1, 3, 6, 10], dtype=torch.int32), torch.tensor([5, 5, 5, 5], dtype=torch.int32)
    sequences, positions = get_batch_indices_positions(indptr, lengths, 12)
    assert sequences.tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3, -1, -1]
    assert positions.tolist() == [4, 3, 4, 2, 3, 4, 1, 2, 3, 4, -1, -1]
    assert sequences.dtype == positions.dtype == torch.int32
    sequences, positions = get_batch_indices_positions(torch.tensor([0, 2, 2, 3]), torch.tensor([7, 9, 1]), 3)
    assert sequences.tolist() == [0, 0, 2]
    assert positions.tolist() == [5, 6, 0]
    assert get_batch_indices_positions(indptr[:1], lengths[:0], 2)[0].tolist() == [-1, -1]


def test_compiled():
    random = generator()
    pages = Pages((5, 3), (2, 3), 2, 9, random)
    key = noise((5, 2, 16), BHALF, random)
    cache = noise((9, 2, 2, 2, 16), BHALF, random)
    torch.compiler.reset()
    append = torch.compile(append_paged_kv_cache, fullgraph=True, backend="aot_eager")
    check(
        lambda: append(key, key, pages.batch_indices, pages.positions, cache, *pages.tail),
        key,
        key,
        cache.unbind(1),
        pages.slots,
    )
