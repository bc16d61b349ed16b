"""GatherPaKvCache, the mirror of the scatters: cache rows of each sequence, one sequence after the other."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor

from .slots import bits


def reference(
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    seq_offset: Tensor | None = None,
    cache_mode: str = "Norm",
    is_seq_lens_cumsum: bool = True,
) -> None:
    """Update key and value in place: token t of sequence b comes from place ``t % BS`` of block ``table[b, c]``, where
    ``c = seq_offset[b] // BS + t // BS``.

    Norm: key_cache [NB, BS, N, Dk], key [T, N, Dk]; PA_NZ: key_cache [NB, N*Dk/L, BS, L], key [T, N*Dk], L elements
    being 32 bytes; value likewise. block_tables [B, W]; seq_lens [B], or [B + 1] sums that begin with 0; seq_offset
    [B]. Zeros stand for a column past W and for a block that a cache does not have. Tokens past T are dropped and rows
    past the last token keep their content.
    """
    lengths = seq_lens.tolist()
    if is_seq_lens_cumsum:
        lengths = [end - begin for begin, end in pairwise(lengths)]
    offsets = [0] * len(lengths) if seq_offset is None else seq_offset.tolist()
    num_blocks = min(len(key_cache), len(value_cache))
    for cache, out in ((key_cache, key), (value_cache, value)):
        by_place = bits(cache) if cache_mode == "Norm" else bits(cache).movedim(2, 1)  # [NB, BS, ...]
        block_size = by_place.shape[1]
        row = 0
        for table, length, offset in zip(block_tables.tolist(), lengths, offsets, strict=True):
            for token in range(length):
                if row == len(out):
                    break
                column = offset // block_size + token // block_size
                block = table[column] if column < len(table) else -1
                target = bits(out)[row]
                if 0 <= block < num_blocks:
                    target.copy_(by_place[block, token % block_size].reshape(target.shape))
                else:
                    target.zero_()
                row += 1
