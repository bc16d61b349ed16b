"""FlashInfer's page appends: ragged tokens into the pages that kv_indices and kv_indptr name."""

from __future__ import annotations

import torch
from torch import Tensor

from ..api import scatter_pa_kv_cache
from ..errors import DataError, InvalidParameterError
from ..slots import PADDING, check_indexes, readable, slots_from_block_table

LAYOUTS = ("NHD", "HND")


def append_paged_kv_cache(
    append_key: Tensor,
    append_value: Tensor,
    batch_indices: Tensor,
    positions: Tensor,
    paged_kv_cache: Tensor | tuple[Tensor, Tensor],
    kv_indices: Tensor,
    kv_indptr: Tensor,
    kv_last_page_len: Tensor | None,
    kv_layout: str = "NHD",
) -> None:
    """Write each token at its position of its sequence, in place.

    append_key, append_value: [T, H, D], of any strides; head sizes may differ. batch_indices, positions: [T], negative
    for padding. paged_kv_cache: [P, 2, page, H, D] for "NHD", [P, 2, H, page, D] for "HND", or the pair of keys and
    values, without the axis of 2. kv_indices: the pages of all sequences, one after another; kv_indptr: [B + 1], where
    those of each begin. kv_last_page_len: unused. The index tensors are int32 or int64.

    Raises InvalidParameterError for tensors that do not fit together; DataError, for index tensors on a CPU, where a
    token lies past its sequence's pages; and what ``scatter_pa_kv_cache`` raises.
    """
    if kv_layout not in LAYOUTS:
        raise InvalidParameterError(f"kv_layout is {kv_layout!r}; it must be 'NHD' or 'HND'")
    key_cache, value_cache = _split(paged_kv_cache, kv_layout)
    if kv_layout == "HND":
        key_cache, value_cache = key_cache.transpose(1, 2), value_cache.transpose(1, 2)
    _append(
        {"append_key": append_key, "append_value": append_value},
        (key_cache, value_cache),
        (batch_indices, positions, kv_indices, kv_indptr),
    )


def append_paged_mla_kv_cache(
    append_ckv: Tensor,
    append_kpe: Tensor,
    batch_indices: Tensor,
    positions: Tensor,
    ckv_cache: Tensor,
    kpe_cache: Tensor,
    kv_indices: Tensor,
    kv_indptr: Tensor,
    kv_last_page_len: Tensor | None,
) -> None:
    """Write latents [T, R] and rotary keys [T, P] into ckv_cache [P, page, R] and kpe_cache [P, page, P], in place.

    R and P may be any; the other arguments and errors are those of :func:`append_paged_kv_cache`.
    """
    for name, tensor, rank in (
        ("append_ckv", append_ckv, 2),
        ("append_kpe", append_kpe, 2),
        ("ckv_cache", ckv_cache, 3),
        ("kpe_cache", kpe_cache, 3),
    ):
        if tensor.dim() != rank:
            raise InvalidParameterError(f"{name} has shape {list(tensor.shape)}; it must have rank {rank}")
    _append(
        {"append_ckv": append_ckv.unsqueeze(1), "append_kpe": append_kpe.unsqueeze(1)},
        (ckv_cache.unsqueeze(2), kpe_cache.unsqueeze(2)),
        (batch_indices, positions, kv_indices, kv_indptr),
    )


def get_batch_indices_positions(append_indptr: Tensor, seq_lens: Tensor, nnz: int) -> tuple[Tensor, Tensor]:
    """The sequence and the position of each of ``nnz`` tokens: two int32 tensors [nnz], -1 past the last token.

    append_indptr: [B + 1], where the new tokens of each sequence begin (vLLM's query_start_loc). seq_lens: [B], tokens
    of each sequence with the new ones, which are its last. Made on the tensors' device, without waiting for it.
    """
    check_indexes(append_indptr=append_indptr, seq_lens=seq_lens)
    tokens = torch.arange(nnz, device=append_indptr.device)
    ends = append_indptr[1:].long()
    sequences = torch.searchsorted(ends, tokens, right=True)
    live = sequences < seq_lens.shape[0]
    if not seq_lens.shape[0]:
        return torch.full_like(tokens, PADDING, dtype=torch.int32), torch.full_like(tokens, PADDING, dtype=torch.int32)
    rows = torch.where(live, sequences, 0)
    positions = seq_lens.long()[rows] - ends[rows] + tokens
    return (
        torch.where(live, sequences, PADDING).to(torch.int32),
        torch.where(live, positions, PADDING).to(torch.int32),
    )


def _split(paged_kv_cache: Tensor | tuple[Tensor, Tensor], kv_layout: str) -> tuple[Tensor, Tensor]:
    form = "[P, 2, page, H, D]" if kv_layout == "NHD" else "[P, 2, H, page, D]"
    if isinstance(paged_kv_cache, Tensor):
        if paged_kv_cache.dim() != 5 or paged_kv_cache.shape[1] != 2:
            raise InvalidParameterError(
                f"paged_kv_cache has shape {list(paged_kv_cache.shape)}; with kv_layout {kv_layout!r} it must be "
                f"{form}, or a pair of tensors"
            )
        return paged_kv_cache[:, 0], paged_kv_cache[:, 1]
    key_cache, value_cache = paged_kv_cache
    for name, cache in (("keys", key_cache), ("values", value_cache)):
        if cache.dim() != 4:
            raise InvalidParameterError(
                f"paged_kv_cache's {name} have shape {list(cache.shape)}; with kv_layout {kv_layout!r} they must be "
                f"{form.replace(' 2,', '')}"
            )
    return key_cache, value_cache


def _append(sources: dict[str, Tensor], caches: tuple[Tensor, Tensor], indexes: tuple[Tensor, ...]) -> None:
    """``sources``: the key and the value by the names of their arguments. caches: [P, page, H, D]."""
    batch_indices, positions, kv_indices, kv_indptr = indexes
    check_indexes(batch_indices=batch_indices, positions=positions, kv_indices=kv_indices, kv_indptr=kv_indptr)
    for name, tensor in {"positions": positions, **sources}.items():
        if tensor.shape[:1] != batch_indices.shape:
            raise InvalidParameterError(
                f"{name} has shape {list(tensor.shape)} and batch_indices {list(batch_indices.shape)}; both must have "
                "one entry for each token"
            )
    slots = _slots(batch_indices, positions, kv_indices, kv_indptr, caches[0].shape[1])
    key, value = sources.values()
    scatter_pa_kv_cache(key, caches[0], slots, value, caches[1])


def _slots(batch_indices: Tensor, positions: Tensor, kv_indices: Tensor, kv_indptr: Tensor, page_size: int) -> Tensor:
    """The pages of all sequences are one long block table, in which a sequence's tokens begin at its first page."""
    live = (batch_indices >= 0) & (positions >= 0)
    rows = torch.where(live, batch_indices, 0).long()
    if readable(kv_indptr):
        _check_data(torch.where(live, rows, -1), positions, kv_indptr, page_size)
    if kv_indptr.shape[0] < 2:
        return torch.full_like(positions, PADDING)
    places = torch.where(live, kv_indptr[rows].long() * page_size + positions, PADDING)
    return slots_from_block_table(kv_indices[None], places, page_size, torch.zeros_like(places))


def _check_data(rows: Tensor, positions: Tensor, kv_indptr: Tensor, page_size: int) -> None:
    pages = kv_indptr.diff()
    for token in torch.nonzero(rows >= len(pages)).flatten()[:1].tolist():
        raise DataError(f"batch_indices[{token}] is {rows[token]}; it must be less than kv_indptr's {len(pages)} rows")
    beyond = (rows >= 0) & (positions >= pages[rows.clamp(min=0)] * page_size) if len(pages) else rows >= 0
    for token in torch.nonzero(beyond).flatten()[:1].tolist():
        raise DataError(
            f"positions[{token}] is {positions[token]}; sequence {rows[token]} must have a page for it, kv_indptr "
            f"gives it {pages[rows[token]]} of {page_size} tokens"
        )
