"""Compressor state: where new rows go, what the windows hold then, and what completed windows come to."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .stages import rms_norm, rotate_pairs

EPSILON = 1e-6


class Update(NamedTuple):
    """What :func:`update` returns. done: [B] bool, is the window complete; windows [B, ratio, W] fp32."""

    window_kv: Tensor
    window_score: Tensor
    done: Tensor


def update(
    kv: Tensor,
    score: Tensor,
    ape: Tensor,
    block_table: Tensor,
    start: Tensor,
    kv_state: Tensor,
    score_state: Tensor,
) -> Update:
    """Update both states [NB, BS, W] fp32 in place; return the windows in which the first new tokens lie.

    kv, score: [B, S, W] fp32, S new tokens of each sequence, from position start[b] on. ape: [ratio, W] fp32, added to
    the score by place in the window, BS % ratio == 0 and S <= ratio. block_table: [B, C] integers, distinct blocks. A
    window holds old rows and the new ones that belong to it; those past its end are rows of the next one.
    """
    ratio, block_size = len(ape), kv_state.shape[1]
    sequences, new, width = kv.shape
    windows = kv.new_empty(2, sequences, ratio, width)
    done = torch.empty(sequences, dtype=torch.bool, device=kv.device)
    for number in range(sequences):
        begin = int(start[number])
        positions = range(begin, begin + new)
        places = torch.tensor([position % ratio for position in positions])
        rows = kv[number], score[number] + ape[places]
        slots = torch.tensor([_slot(position, block_table[number], block_size) for position in positions])
        place = begin % ratio
        first = _slot(begin - place, block_table[number], block_size)
        count = min(new, ratio - place)
        for window, state, added in zip(windows[:, number], (kv_state, score_state), rows, strict=True):
            window.copy_(state.view(-1, width)[first : first + ratio])
            window[place : place + count] = added[:count]
            state.view(-1, width)[slots] = added
        done[number] = place + new >= ratio
    return Update(windows[0], windows[1], done)


def _slot(position: int, blocks: Tensor, block_size: int) -> int:
    return int(blocks[position // block_size]) * block_size + position % block_size


def completed(
    windows: Update,
    weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    block_table: Tensor,
    start: Tensor,
    kv_state: Tensor,
    score_state: Tensor,
    *,
    overlap: bool,
) -> tuple[Tensor, Tensor]:
    """The completed windows, reduced: pooled [B, D] fp32 and out [B, D] bf16, zeros for the other sequences.

    overlap: D is W / 2; of the window before, if there is one, the first half of each row counts, of the own window the
    second half. Else D is W. pooled is ``sum(kv * softmax(score))`` down each column; out is its bf16 after RMSNorm by
    weight [D] fp32 and RoPE of the last R columns, cos and sin [B, R] bf16.
    """
    sequences, ratio, width = windows.window_kv.shape
    size, rotary = width // 2 if overlap else width, cos.shape[-1]
    pooled = windows.window_kv.new_zeros(sequences, size)
    out = pooled.bfloat16()
    for number in torch.nonzero(windows.done).flatten().tolist():
        kv, score = windows.window_kv[number], windows.window_score[number]
        before = int(start[number]) // ratio * ratio - ratio
        if overlap:
            kv, score = kv[:, size:], score[:, size:]
        if overlap and before >= 0:
            first = _slot(before, block_table[number], kv_state.shape[1])
            kv, score = (
                torch.cat([state.view(-1, width)[first : first + ratio, :size], own])
                for state, own in ((kv_state, kv), (score_state, score))
            )
        weights = torch.exp(score - score.amax(0, keepdim=True))
        pooled[number] = (kv * (weights / weights.sum(0, keepdim=True))).sum(0)
        normed = rms_norm(pooled[number].bfloat16().float()[None], weight, EPSILON)
        rotated = rotate_pairs(normed[:, size - rotary :], cos[number, None], sin[number, None])
        out[number] = torch.cat([normed[:, : size - rotary], rotated], -1)[0]
    return pooled, out
