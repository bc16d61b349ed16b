"""Gathers in sim: computed in launches of a few blocks, every one compared with golden bit for bit.

A launch sees the blocks that it reads and the rows that it writes, no more. The same kernel is verified once, pass by
pass, on a small cache. The results change only when all of it is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .gate import launch
from .gather_plan import GatherPlan, Sequences
from .golden.gather import reference
from .golden.slots import bits
from .kernels.pages import Pages
from .runtime import Kernel
from .sim import COPIES, memory_budget, require

SPARSE = 2**24  # bytes that a launch sees, times its tiles, before it ends with the block it is at

_verified: set[Kernel] = set()


class Part(NamedTuple):
    """What one launch copies: its sequences, with blocks and rows counted in what it sees, and those in the whole."""

    sequences: Sequences
    blocks: Tensor
    first_row: int
    end_row: int


def run(plan: GatherPlan) -> None:
    """Update key and value in place. Raises SimulationError, key and value untouched, if any verdict is not PASS."""
    sequences = plan.sequences()
    if not int(sequences.lengths.sum()):
        return
    held = 3 * sum(side.out.nbytes for side in plan.sides)
    require(held, "gather")
    _verify(plan)
    goldens = _goldens(plan)
    results = []
    for part in _parts(plan, sequences, held):
        rows, written = _seen(plan, part.blocks), slice(part.first_row, part.end_row)
        outs = [bits(side.out)[written].clone().view(side.out.dtype) for side in plan.sides]
        wanted = [golden[written] for golden in goldens]
        results.append((written, _launch(plan, "values", part.sequences, rows, outs, wanted)))
    for written, computed in results:
        for side, result in zip(plan.sides, computed, strict=True):
            token = _token_columns(side.pages)
            bits(side.out)[written, token] = bits(result)[:, token]


def _goldens(plan: GatherPlan) -> list[Tensor]:
    """The rows of key and value as golden leaves them, with what lies between the tokens."""
    call = plan.call
    goldens, results = [], []
    for side, out in zip(plan.sides, (call.key, call.value), strict=True):
        goldens.append(bits(side.out).clone().view(side.out.dtype))
        column = side.pages.out_column * side.out.itemsize // out.itemsize
        results.append(goldens[-1].view(out.dtype).as_strided(out.shape, out.stride(), column))
    reference(
        call.key_cache,
        call.value_cache,
        call.block_tables,
        call.seq_lens,
        results[0],
        results[1],
        seq_offset=call.seq_offset,
        cache_mode=call.spec.cache_mode,
        is_seq_lens_cumsum=call.spec.is_seq_lens_cumsum,
    )
    return goldens


def _launch(
    plan: GatherPlan,
    stage: str,
    sequences: Sequences,
    rows: list[Tensor],
    outs: list[Tensor],
    goldens: list[Tensor],
) -> list[Tensor]:
    tensors = plan.tensors(sequences, rows, outs)
    return list(launch(plan.kernel, stage, tensors, dict(enumerate(goldens, len(tensors) - 2))).values())


def _token_columns(pages: Pages) -> slice:
    return slice(pages.out_column, pages.out_column + pages.piece * pages.pieces)


def _parts(plan: GatherPlan, sequences: Sequences, held: int) -> Iterator[Part]:
    """Runs of blocks, in the order of the result, that a launch can do within the budget."""
    block_bytes = sum(_block_rows(plan, side.pages) * _row_bytes(side.rows) for side in plan.sides)
    token_bytes = sum(_row_bytes(side.out) for side in plan.sides)
    tiles = -(-plan.block_size // plan.tile) * sum(side.pages.pieces // side.pages.chunk for side in plan.sides)
    pages: list[tuple[int, int]] = []  # (sequence, block of it)
    for sequence, length in enumerate(sequences.lengths.tolist()):
        for number in range(-(-length // plan.block_size)):
            seen = (len(pages) + 1) * (block_bytes + plan.block_size * token_bytes)
            work = seen * (len(pages) + 1) * tiles
            if pages and (work > SPARSE or held + work * COPIES > memory_budget()):
                yield _part(plan, sequences, pages)
                pages = []
            elif not pages:
                require(held + work * COPIES, "gather")
            pages.append((sequence, number))
    yield _part(plan, sequences, pages)


def _part(plan: GatherPlan, sequences: Sequences, pages: list[tuple[int, int]]) -> Part:
    """Some blocks of consecutive sequences; of the first and the last of them perhaps not all."""
    size = plan.block_size
    first_sequence, last_sequence = pages[0][0], pages[-1][0]
    some = slice(first_sequence, last_sequence + 1)
    numbers = torch.arange(first_sequence, last_sequence + 1)
    begins = torch.where(numbers == first_sequence, pages[0][1], 0)
    ends = torch.where(numbers == last_sequence, pages[-1][1] + 1, 2**31)
    lengths = torch.minimum(sequences.lengths[some], ends * size) - begins * size
    first_blocks = sequences.first_blocks[some] + begins
    starts = sequences.starts[some] + begins * size
    table = sequences.block_table[some]
    count = -(-lengths // size)
    columns = torch.arange(table.shape[1])
    read = (columns >= first_blocks[:, None]) & (columns < (first_blocks + count)[:, None]) & (table >= 0)
    if all(_apart(plan, side.pages) for side in plan.sides):
        blocks = torch.unique(table[read])
        table = torch.where(read, torch.searchsorted(blocks, table).int(), -1)
    else:
        blocks = torch.arange(min(plan.call.key_cache.shape[0], plan.call.value_cache.shape[0]))
    alive = lengths > 0
    row, end = int(starts[alive].min()), int((starts + lengths)[alive].max())
    small = Sequences(table, first_blocks.int(), lengths.int(), (starts - row).int())
    return Part(small, blocks, row, end)


def _apart(plan: GatherPlan, pages: Pages) -> bool:
    """Does each block's memory end before the next one begins? Else no block can be taken out of it."""
    return pages.block_rows >= _extent(plan, pages)


def _extent(plan: GatherPlan, pages: Pages) -> int:
    return plan.block_size + (pages.pieces - 1) * pages.piece_rows


def _block_rows(plan: GatherPlan, pages: Pages) -> int:
    return max(pages.block_rows, _extent(plan, pages))


def _row_bytes(rows: Tensor) -> int:
    return rows.shape[1] * rows.element_size()


def _seen(plan: GatherPlan, blocks: Tensor) -> list[Tensor]:
    """Copies of the memory rows of some blocks of each cache, block after block; the whole memory if that cannot be."""
    seen = []
    for side in plan.sides:
        if not _apart(plan, side.pages) or not len(blocks):
            seen.append(side.rows if len(blocks) else side.rows[:1].clone())
            continue
        apart, extent = side.pages.block_rows, _extent(plan, side.pages)
        small = side.rows.new_zeros(len(blocks) * apart, side.rows.shape[1])
        numbers = blocks.long()[:, None] * apart + torch.arange(extent)
        places = torch.arange(len(blocks))[:, None] * apart + torch.arange(extent)
        bits(small)[places] = bits(side.rows)[numbers]
        seen.append(small)
    return seen


def _verify(plan: GatherPlan) -> None:
    """Every compiler pass of the plan's kernel, once in this process, on two blocks of noise.

    Three sequences: two tiles, of the second block and, where a tile is a block, of the first; none; and a token of a
    block that there is not.
    """
    if plan.kernel in _verified:
        return
    table = torch.tensor([[1, 0], [0, 0], [0, -1]])
    lengths = torch.tensor([plan.tile + max(1, plan.tile // 2), 0, 1])
    first_blocks = torch.tensor([0, 0, 1])
    starts = lengths.cumsum(0) - lengths
    tokens = int(lengths.sum()) + 1  # a row that is left alone
    random = torch.Generator().manual_seed(0)
    rows: list[Tensor] = []
    outs: list[Tensor] = []
    goldens: list[Tensor] = []
    caches: list[Tensor] = []
    results: list[Tensor] = []
    for side in plan.sides:
        pages = side.pages
        rows.append(_noise(side.rows, pages.block_rows + _extent(plan, pages), random))
        outs.append(_noise(side.out, tokens, random))
        goldens.append(bits(outs[-1]).clone().view(side.out.dtype))
        caches.append(
            rows[-1].as_strided(
                (2, plan.block_size, pages.pieces, pages.piece),
                (pages.block_rows * pages.width, pages.width, pages.piece_rows * pages.width + pages.piece_columns, 1),
                pages.column,
            )
        )
        results.append(goldens[-1][:, _token_columns(pages)].unflatten(1, (pages.pieces, pages.piece)))
    require(sum(tensor.nbytes for tensor in (*rows, *outs)) * COPIES * 6, "gather")
    offset = first_blocks * plan.block_size
    reference(caches[0], caches[1], table, lengths, results[0], results[1], seq_offset=offset, is_seq_lens_cumsum=False)
    padded = torch.nn.functional.pad(table, (0, 1), value=-1)
    sequences = Sequences(*(numbers.int() for numbers in (padded, first_blocks, lengths, starts)))
    _launch(plan, "verdicts", sequences, rows, outs, goldens)
    _verified.add(plan.kernel)


def _noise(like: Tensor, rows: int, random: torch.Generator) -> Tensor:
    """``rows`` rows of random bits, as wide as those of another."""
    noise = torch.randint(0, 256, (rows, _row_bytes(like)), generator=random, dtype=torch.uint8)
    return noise.view(like.dtype)
