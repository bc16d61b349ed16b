"""From block tables to slots: what every user of a paged cache computes once a step."""

from __future__ import annotations

import torch
from torch import Tensor

from .dtypes import INDEX_DTYPES
from .errors import DataError, InvalidParameterError

PADDING = -1


def slots_from_block_table(
    block_table: Tensor, positions: Tensor, block_size: int, sequences: Tensor | None = None
) -> Tensor:
    """The slot of each new token: its place in the block that its sequence's block table names for its position.

    Slot i is ``block_table[sequences[i], positions[i] // block_size] * block_size + positions[i] % block_size``.

    block_table: [B, M], the cache blocks of each sequence in the order of its tokens, and anything past its last one.
    positions: [T], where each token stands in its sequence, from 0; negative for padding.
    sequences: [T], the row of block_table that each token belongs to; negative for padding. None: token i belongs to
    sequence i, as when each sequence decodes one token. All are int32 or int64 and on one device.

    Returns [T] slots of block_table's dtype, to pass as ``slot_mapping``; -1 for padding and for a negative block. They
    are made by torch operations on the tensors' device, without waiting for it.

    Raises InvalidParameterError for tensors that do not fit together; DataError, for tensors on a CPU, where a position
    is past the table or a sequence is none of its rows.
    """
    _check(block_table, positions, block_size, sequences)
    live = positions >= 0
    if sequences is None:
        sequences = torch.arange(block_table.shape[0], device=block_table.device)
    else:
        live = live & (sequences >= 0)
    rows = torch.where(live, sequences, 0).long()
    places = torch.where(live, positions, 0).long()
    columns = places // block_size
    if readable(positions):
        _check_data(block_table, live, rows, columns, block_size)
    if 0 in block_table.shape:
        return torch.full_like(positions, PADDING, dtype=block_table.dtype)
    blocks = block_table[rows, columns]
    slots = blocks * block_size + (places % block_size).to(block_table.dtype)
    return slots.masked_fill(~live | (blocks < 0), PADDING)


def readable(tensor: Tensor) -> bool:
    """May the data of ``tensor`` be looked at? Not on a device, which would be waited for, nor while tracing."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def check_indexes(**tensors: Tensor) -> None:
    """Raises InvalidParameterError unless the tensors are int32 or int64 and on one device."""
    first, *_ = tensors
    for name, tensor in tensors.items():
        if str(tensor.dtype).removeprefix("torch.") not in INDEX_DTYPES:
            raise InvalidParameterError(f"{name} is {tensor.dtype}; it must be {' or '.join(INDEX_DTYPES)}")
        if tensor.device != tensors[first].device:
            raise InvalidParameterError(
                f"{name} is on {tensor.device}; it must be on {first}'s device, {tensors[first].device}"
            )


def _check(block_table: Tensor, positions: Tensor, block_size: int, sequences: Tensor | None) -> None:
    check_indexes(block_table=block_table, positions=positions)
    if block_table.dim() != 2:
        raise InvalidParameterError(f"block_table has shape {list(block_table.shape)}; it must have rank 2, [B, M]")
    if positions.dim() != 1:
        raise InvalidParameterError(f"positions has shape {list(positions.shape)}; it must have rank 1, [T]")
    if block_size < 1:
        raise InvalidParameterError(f"block_size is {block_size}; it must be at least 1")
    if sequences is not None:
        check_indexes(block_table=block_table, sequences=sequences)
        if sequences.shape != positions.shape:
            raise InvalidParameterError(
                f"sequences has shape {list(sequences.shape)}; it must have positions' shape, {list(positions.shape)}"
            )
    elif positions.shape[0] != block_table.shape[0]:
        raise InvalidParameterError(
            f"positions has {positions.shape[0]} entries and block_table {block_table.shape[0]} sequences; without "
            "sequences there must be one position for each"
        )


def _check_data(block_table: Tensor, live: Tensor, rows: Tensor, columns: Tensor, block_size: int) -> None:
    batch, width = block_table.shape
    for token in torch.nonzero(live & ((rows >= batch) | (columns >= width))).flatten()[:1].tolist():
        if rows[token] >= batch:
            raise DataError(f"sequences[{token}] is {rows[token]}; it must be less than block_table's {batch} rows")
        raise DataError(
            f"positions[{token}] lies in block {columns[token]} of its sequence; block_table must have more than "
            f"{width} columns for it, or block_size, {block_size}, must be larger"
        )
