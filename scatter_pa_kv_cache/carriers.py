"""How tensors reach a kernel: a copy moves bits, so only the width of an element matters.

16- and 32-bit types go as they are, or as the signed type of their width; 8-bit types and packed 4-bit types as int16
pairs where the memory allows it, else as int8. NaN payloads and -0.0 survive. Views only: caches are never copied.
"""

from __future__ import annotations

import torch

_AS_THEY_ARE = (torch.float16, torch.bfloat16, torch.float32, torch.int16, torch.int32)
_OF_WIDTH = {2: torch.int16, 4: torch.int32}


def carry(source: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A source and its cache, of one dtype, as views of their carrier."""
    dtype = cache.dtype
    if dtype in _AS_THEY_ARE:
        return source, cache
    if dtype.itemsize > 1:
        carrier = _OF_WIDTH[dtype.itemsize]
    else:
        carrier = torch.int16 if _pairs(source) and _pairs(cache) else torch.int8
    return source.view(carrier), cache.view(carrier)


def _pairs(tensor: torch.Tensor) -> bool:
    """Can the bytes be seen two by two?"""
    *outer, last = tensor.stride()
    return (
        last == 1
        and tensor.shape[-1] % 2 == 0
        and tensor.storage_offset() % 2 == 0
        and all(stride % 2 == 0 for stride in outer)
    )


def token_rows(source: torch.Tensor) -> tuple[torch.Tensor, int]:
    """A source [T, H, D] as a 2-D tensor of a token a row, and the column where its H*D elements begin.

    Tokens that lie dense at a distance, as in a fused QKV matrix, are read in place: [T, distance]. Where their memory
    cannot be seen so, the source is packed by a copy.
    """
    tokens, elements = source.shape[0], source[0].numel()
    if not source.is_contiguous() and source[0].is_contiguous():
        width = source.stride(0)
        column = int(source.storage_offset()) % width if width else 0
        begin = source.storage_offset() - column
        stored = source.untyped_storage().nbytes() // source.element_size()
        if column + elements <= width and begin + tokens * width <= stored:
            return source.as_strided((tokens, width), (width, 1), begin), column
    return group_rows(source, elements), 0


def group_rows(source: torch.Tensor, row: int) -> torch.Tensor:
    """A source [T, H, D] as contiguous rows of ``row`` elements, G a token: [T*G, row]."""
    return source.contiguous().view(-1, row)
