"""The patterns alone, each in a kernel of its own with every compiler pass PASS, and each form of AT-16's index."""

import re

import _checkout
import pytest
import torch

pytest.importorskip("pypto")

from scatter_pa_kv_cache.gate import launch
from scatter_pa_kv_cache.golden import norm, pa_nz
from scatter_pa_kv_cache.indexing import row_index
from scatter_pa_kv_cache.kernels.side import Side
from scatter_pa_kv_cache.runtime import Kernel

PATTERNS = _checkout.ROOT / "patterns"
CARDS = ("at16_cache_scatter", "at17_block_gather", "at20_tail_block", "sk05_fused_pre_attention")


def run(kernel, arguments, tensors, goldens):
    """Launch with verdicts: every pass PASS at zero tolerance and every golden's bits."""
    launch(Kernel(f"pattern_kernels:{kernel}", tuple(arguments.items())), "verdicts", tensors, goldens)


def random_rows(*shape, dtype=torch.bfloat16, seed=0):
    random = torch.Generator().manual_seed(seed + sum(shape))
    if dtype.is_floating_point:
        return torch.randn(shape, generator=random).to(dtype)
    return torch.randint(-128, 128, shape, generator=random, dtype=dtype)


def random_slots(tokens, capacity, dtype=torch.int32):
    return torch.randperm(capacity, generator=torch.Generator().manual_seed(tokens))[:tokens].to(dtype)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("tokens", [1, 8, 19])
def test_at16_index_by_slots(tokens, index_dtype):
    source, cache = random_rows(tokens, 1, 32), random_rows(4, 16, 1, 32)
    slots = random_slots(tokens, 64, index_dtype)
    golden = cache.clone()
    norm.scatter(source, golden, slots)
    side = Side("bfloat16", 32, 1, 32)
    arguments = {"side": side, "index_dtype": str(index_dtype).removeprefix("torch."), "tile": 8}
    tensors = (source.view(-1, 32), slots[None], cache, cache.view(-1, 32))
    run("scatter_kernel", arguments, tensors, {3: golden.view(-1, 32)})


def test_at16_index_by_slot_and_group():
    """PA_NZ: four rows a token, a block apart, named by one flat row of T * G numbers."""
    source, cache = random_rows(11, 2, 32), random_rows(4, 4, 8, 16)
    slots = random_slots(11, 32)
    golden = cache.clone()
    pa_nz.reference(source, golden, slots, source, golden.clone())
    index = row_index(slots, cache, cache_mode="PA_NZ").indexes[0]
    assert index.shape == (1, 44)
    arguments = {"side": Side("bfloat16", 16, 4, 16), "index_dtype": "int32", "tile": 4}
    tensors = (source.view(-1, 16), index, cache.view(1, -1, 1, 16), cache.view(-1, 16))
    run("scatter_kernel", arguments, tensors, {3: golden.view(-1, 16)})


def test_at16_one_index_for_three_caches():
    """The caches of a quantised MLA: int8, bfloat16 and float32 rows of 512, 64 and 4."""
    widths, dtypes = (512, 64, 4), (torch.int8, torch.bfloat16, torch.float32)
    slots = random_slots(13, 48, torch.int64)
    sources = [random_rows(13, 1, width, dtype=dtype) for width, dtype in zip(widths, dtypes, strict=True)]
    caches = [random_rows(3, 16, 1, width, dtype=dtype) for width, dtype in zip(widths, dtypes, strict=True)]
    goldens = [cache.clone() for cache in caches]
    for source, golden in zip(sources, goldens, strict=True):
        norm.scatter(source, golden, slots)
    tensors = [source.flatten(1) for source in sources]
    tensors += [slots[None], *caches, *(cache.flatten(0, 2) for cache in caches)]
    arguments = {"widths": widths, "tile": 8}
    run("three_caches_kernel", arguments, tensors, {7 + n: golden.flatten(0, 2) for n, golden in enumerate(goldens)})


def test_at16_index_by_place_in_a_window():
    """Begin and count of three windows of 4: one inside, one to the end, one past it, whose last rows are cut."""
    ratio, width = 4, 16
    begins, counts = (1, 2, 3), (2, 2, 4)
    fresh, windows = random_rows(12, width, dtype=torch.float32), random_rows(12, width, dtype=torch.float32, seed=1)
    golden = windows.clone()
    for number, (begin, count) in enumerate(zip(begins, counts, strict=True)):
        for step in range(min(count, ratio - begin)):
            golden[number * ratio + begin + step] = fresh[number * ratio + step]
    numbers = torch.arange(12, dtype=torch.int32)[None]
    scalars = (torch.tensor(given, dtype=torch.int32) for given in (begins, counts))
    tensors = (fresh, numbers, *scalars, windows.view(3, ratio, 1, width), windows)
    run("window_kernel", {"ratio": ratio, "width": width}, tensors, {5: golden})


@pytest.mark.parametrize("column", [0, 16], ids=["whole rows", "a column range"])
def test_at17_blocks_of_a_sequence(column):
    """Lengths of less than a block, of whole spans, and with a tail; negative and short table rows."""
    blocks, size, width, cache_width = 2, 8, 32, 48
    table = torch.tensor([[3, 1, 0], [2, -1, -1], [4, 0, 1], [-1, 5, 5]], dtype=torch.int32)
    lengths, starts = (20, 3, 16, 6), (0, 32, 48, 64)
    cache = torch.randint(-8, 8, (6 * size, cache_width), generator=torch.Generator().manual_seed(1)).bfloat16()
    doubled, sums = torch.full((80, width), -9.0).bfloat16(), torch.full((5, width), -9.0)
    want, want_sums = doubled.clone(), sums.clone()
    for entries, length, start in zip(table.tolist(), lengths, starts, strict=True):
        rows = [cache[max(entries[token // size], 0) * size + token % size, column:][:width] for token in range(length)]
        want[start : start + length] = 2 * torch.stack(rows)
        for first in range(0, length, blocks * size):
            total = torch.stack(rows[first : first + blocks * size]).float().sum(0)
            want_sums[(start + first) // (blocks * size)] = total
    arguments = {"dtype": "bfloat16", "blocks": blocks, "block_size": size, "width": width}
    tensors = (table, *(torch.tensor(given, dtype=torch.int32) for given in (lengths, starts)), cache, doubled, sums)
    arguments |= {"column": column, "cache_width": cache_width}
    run("read_kernel", arguments, tensors, {4: want, 5: want_sums})


@pytest.mark.parametrize("tokens", [1, 7, 8, 9, 24, 25])
def test_at20_tails(tokens):
    source = random_rows(tokens, 16, dtype=torch.float32)
    out = torch.full((tokens + 1, 16), -9.0)
    golden = torch.cat((source + 1, out[-1:]))
    run("tail_kernel", {"tile": 8, "width": 16}, (source, out), {1: golden})


@pytest.mark.parametrize("card", CARDS)
def test_cards_have_every_section(card):
    text = (PATTERNS / f"{card}.md").read_text()
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == [
        *("Description", "Flow pattern", "Data flow", "Inputs and outputs", "Dtype route", "Dynamic axes"),
        *("Constraints", "Wrong ways", "Users"),
    ]
    assert "```" in text.split("## Data flow")[1].split("## ")[0]


def test_the_index_names_every_card_and_cards_name_what_there_is():
    index = (PATTERNS / "README.md").read_text()
    for card in CARDS:
        assert f"({card}.md)" in index
    for page in PATTERNS.glob("*.md"):
        for path in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (PATTERNS / path).exists(), f"{page.name} names {path}"
