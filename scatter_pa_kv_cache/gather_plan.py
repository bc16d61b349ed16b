"""An accepted gather -> its kernel, and the tensors that a launch hands to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from .carriers import carrier_dtype
from .errors import TilingError
from .gather_rules import GatherCall
from .kernels.pages import Pages, choose_tile
from .runtime import Kernel

FACTORY = f"{__package__}.kernels.gather:gather_kernel"


class Sequences(NamedTuple):
    """The index tensors of a gather as the kernel reads them, int32 on the device of the call.

    block_table: [B, W + 1], -1 for what gives zeros, the last column for all past W. first_blocks, lengths, starts:
    [B], each sequence's first column, tokens and row of the result; no token is past the result's end.
    """

    block_table: Tensor
    first_blocks: Tensor
    lengths: Tensor
    starts: Tensor


class GatherSide(NamedTuple):
    """Key or value: rows [R, width] of the cache's memory, rows [T, out_width] to be written, and what they hold."""

    rows: Tensor
    out: Tensor
    pages: Pages


@dataclass(frozen=True)
class GatherPlan:
    """A gather that has something to copy."""

    call: GatherCall
    kernel: Kernel
    block_size: int
    tile: int
    sides: tuple[GatherSide, GatherSide]

    def sequences(self) -> Sequences:
        """Made by a few torch operations on the tensors' device, without waiting for it."""
        call = self.call
        lengths = call.seq_lens.long()
        if call.spec.is_seq_lens_cumsum:
            starts, lengths = lengths[:-1], lengths.diff()
        else:
            starts = lengths.cumsum(0) - lengths
        starts = starts.clamp(max=call.key.shape[0])
        lengths = torch.minimum(lengths, call.key.shape[0] - starts).clamp(min=0)
        num_blocks = min(call.key_cache.shape[0], call.value_cache.shape[0])
        table = call.block_tables
        table = pad(torch.where((table >= 0) & (table < num_blocks), table, -1), (0, 1), value=-1)
        if call.seq_offset is None:
            first_blocks = torch.zeros_like(lengths)
        else:
            first_blocks = (call.seq_offset // self.block_size).clamp(max=call.block_tables.shape[1])
        return Sequences(table.int(), first_blocks.int(), lengths.int(), starts.int())

    def tensors(self, sequences: Sequences, rows: list[Tensor], outs: list[Tensor]) -> tuple[Tensor, ...]:
        """The kernel's tensors, the last two of them written."""
        zeros = (row.new_zeros(self.tile, side.pages.piece) for row, side in zip(rows, self.sides, strict=True))
        return (*sequences, *zeros, *rows, *outs)

    def launch_on_npu(self) -> None:
        """Written for real use and never run by this project."""
        rows, outs = [side.rows for side in self.sides], [side.out for side in self.sides]
        self.kernel.build("npu")(*self.tensors(self.sequences(), rows, outs))


def make_gather_plan(call: GatherCall) -> GatherPlan:
    """Raises TilingError (561002) where rows cannot express the strides of a cache or of a result."""
    sides = (_side(call, "key"), _side(call, "value"))
    block_size = call.key_cache.shape[call.spec.block_axis]
    tile = choose_tile(call.key.shape[0], block_size, [side.pages for side in sides])
    names = ("key_pages", "value_pages", "block_size", "tile")
    arguments = (sides[0].pages, sides[1].pages, block_size, tile)
    return GatherPlan(call, Kernel(FACTORY, tuple(zip(names, arguments, strict=True))), block_size, tile, sides)


def _side(call: GatherCall, name: str) -> GatherSide:
    cache, out = getattr(call, f"{name}_cache"), getattr(call, name)
    dtype = carrier_dtype(out, cache)
    cache, out = cache.view(dtype), out.view(dtype)
    if call.spec.cache_mode == "PA_NZ":
        cache = cache.transpose(1, 2)
    rows, source = _cache_rows(f"{name}_cache", cache)
    out_rows, out_column = _result_rows(name, out)
    pages = Pages(str(dtype).removeprefix("torch."), **source, out_width=out_rows.shape[1], out_column=out_column)
    return GatherSide(rows, out_rows, pages)


def _cache_rows(name: str, cache: Tensor) -> tuple[Tensor, dict[str, int]]:
    """A cache [NB, BS, G, D] of any strides as rows of its memory, a row for each place of a block; no copy."""
    num_blocks, block_size, pieces, piece = cache.shape
    block, place, step, last = cache.stride()
    if piece > 1 and last != 1:
        raise TilingError(f"{name} has stride {last} along its last axis; it must be 1", "layout")
    if pieces == 1 or step == piece:
        piece, pieces, step = pieces * piece, 1, 0
    if block_size == 1:
        place = block if num_blocks > 1 else (pieces - 1) * step + piece
    if num_blocks == 1:
        block = 0
    rows_apart = place > 0 and step % place == 0 and step > 0
    extent = piece if rows_apart else (pieces - 1) * step + piece
    if place < extent or block % place:
        raise TilingError(
            f"{name} has shape {list(cache.shape)} and strides {list(cache.stride())} as [NB, BS, ...]; places must "
            "lie apart by at least a token, and blocks by a multiple of that",
            "layout",
        )
    piece_rows = step // place if rows_apart else 0
    count = 1 + (num_blocks - 1) * (block // place) + block_size - 1 + (pieces - 1) * piece_rows
    rows, column = _rows(name, cache, count, place, extent)
    return rows, {
        **{"piece": piece, "pieces": pieces, "width": place, "column": column},
        **{"piece_rows": piece_rows, "piece_columns": 0 if rows_apart else step, "block_rows": block // place},
    }


def _result_rows(name: str, out: Tensor) -> tuple[Tensor, int]:
    """A result [T, ...] as rows [T, width] of its memory, and the column where a token begins."""
    elements = out[0].numel()
    width = out.stride(0) if out.shape[0] > 1 else elements
    if not out[0].is_contiguous() or width < elements:
        raise TilingError(
            f"{name} has shape {list(out.shape)} and strides {list(out.stride())}; each token must lie dense in memory "
            "and none on another, for the result is written in place",
            "layout",
        )
    return _rows(name, out, out.shape[0], width, elements)


def _rows(name: str, tensor: Tensor, count: int, width: int, extent: int) -> tuple[Tensor, int]:
    """``count`` rows of ``width`` elements of a tensor's memory, and the column of its first element in them."""
    offset = int(tensor.storage_offset())
    stored = tensor.untyped_storage().nbytes() // tensor.element_size()
    for column in (0, offset % width):
        if column + extent <= width and offset - column + count * width <= stored:
            return tensor.as_strided((count, width), (width, 1), offset - column), column
    raise TilingError(
        f"{name} has shape {list(tensor.shape)} and strides {list(tensor.stride())}; its memory ends amid its last row "
        f"of {width} elements, and rows must be whole",
        "layout",
    )
