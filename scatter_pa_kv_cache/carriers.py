"""How tensors reach a kernel: a copy moves bits, so only the width of an element matters.

16- and 32-bit types go as they are, or as the signed type of their width; 8-bit types and packed 4-bit types as int16
pairs where the memory allows it, else as int8. NaN payloads and -0.0 survive. Views only: caches are never copied.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

_AS_THEY_ARE = (torch.float16, torch.bfloat16, torch.float32, torch.int16, torch.int32)
_OF_WIDTH = {2: torch.int16, 4: torch.int32}


def carrier_dtype(source: torch.Tensor, cache: torch.Tensor) -> torch.dtype:
    """The dtype that a source and its cache, of one dtype, are viewed as."""
    dtype = cache.dtype
    if dtype in _AS_THEY_ARE:
        return dtype
    if dtype.itemsize > 1:
        return _OF_WIDTH[dtype.itemsize]
    return torch.int16 if _pairs(source) and _pairs(cache) else torch.int8


def _pairs(tensor: torch.Tensor) -> bool:
    """Can the bytes be seen two by two?"""
    *outer, last = tensor.stride()
    return (
        last == 1
        and tensor.shape[-1] % 2 == 0
        and tensor.storage_offset() % 2 == 0
        and all(stride % 2 == 0 for stride in outer)
    )


class SourceView(NamedTuple):
    """How a source is read as rows of ``width`` elements, the first that a kernel takes standing at ``column``.

    placed: size, strides and offset of these rows in its memory, None where the source itself is dense. packed: no view
    can show the rows; placed is the source's own place, and each launch packs it anew.
    """

    placed: tuple[tuple[int, ...], tuple[int, ...], int] | None
    width: int
    column: int = 0
    packed: bool = False

    def of(self, source: torch.Tensor) -> torch.Tensor:
        """The source as [N, width]: a view or, if ``packed``, a copy."""
        if self.placed is not None:
            source = source.as_strided(*self.placed)
            if not self.packed:
                return source
            source = source.contiguous()
        return source.view(-1, self.width)


def token_rows(source: torch.Tensor) -> SourceView:
    """A row for each token of a source [T, H, D] or [B, S, H, D].

    Tokens that lie dense at a distance, as in a fused QKV matrix, are read in place: [T, distance]. Where their memory
    cannot be seen so, the source is packed.
    """
    elements = source.shape[-2] * source.shape[-1]
    try:
        tokens = source.view(-1, *source.shape[-2:])
    except RuntimeError:  # sequences lie apart: their tokens have no common distance
        return group_rows(source, elements)
    if not tokens.is_contiguous() and tokens[0].is_contiguous():
        width = tokens.stride(0)
        column = int(source.storage_offset()) % width if width else 0
        begin = int(source.storage_offset()) - column
        stored = source.untyped_storage().nbytes() // source.element_size()
        if column + elements <= width and begin + len(tokens) * width <= stored:
            return SourceView(((len(tokens), width), (width, 1), begin), width, column)
    return group_rows(source, elements)


def group_rows(source: torch.Tensor, row: int) -> SourceView:
    """Rows of ``row`` elements, G for each token of a source [..., H, D]."""
    if source.is_contiguous():
        return SourceView(None, row)
    place = tuple(source.shape), tuple(source.stride()), int(source.storage_offset())
    return SourceView(place, row, packed=True)
