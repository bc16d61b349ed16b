"""Stages that the fused kernels' goldens share: floats are bf16 outside and fp32 inside, rounded where it says so."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(rows: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    """``rows * (1 / sqrt(mean(rows**2) + epsilon)) * gamma``: [n, W] fp32 to bf16. gamma: [W]."""
    return (rows * torch.reciprocal(torch.sqrt(_mean_square(rows) + epsilon)) * gamma.float()).bfloat16()


def rms_norm_bias(rows: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    """``rows / sqrt(mean(rows**2) + epsilon) * gamma + beta``: [n, W] fp32 to bf16. gamma, beta: [W]."""
    return (rows / torch.sqrt(_mean_square(rows) + epsilon) * gamma.float() + beta.float()).bfloat16()


def _mean_square(rows: Tensor) -> Tensor:
    return (rows * rows * (1.0 / rows.shape[-1])).sum(-1, keepdim=True)


def to_int8(numbers: Tensor) -> Tensor:
    """fp32 to int8: to the nearest, ties to the even one, saturating."""
    return torch.round(numbers).clamp(-128, 127).to(torch.int8)


def quantise_groups(rows: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Symmetric, dynamic int8 of each group of each row: [n, W] bf16 to [n, W] int8 and the scales [n, groups] fp32.

    ``factor = 127 / max|group|``, ``int8 = round(number * factor)``, ``scale = 1 / factor``; where all of a group is 0,
    so are its int8s and its scale. A largest magnitude below 2**-120 counts as that, so that factor stays finite.
    """
    numbers = rows.float().view(len(rows), groups, -1)
    largest = numbers.abs().amax(-1, keepdim=True)
    # a tensor divided by a tensor: torch computes 127.0 / tensor as 127.0 * reciprocal, which rounds twice
    factor = torch.full_like(largest, 127.0) / largest.clamp(min=2.0**-120)
    scales = torch.minimum(torch.reciprocal(factor), largest)
    return to_int8(numbers * factor).view(rows.shape), scales.view(len(rows), groups)


def rotate_halves(head: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE of the first R columns of [n, D] bf16, element k paired with element k + R/2; the other columns pass.

    cos, sin: [n, R/2] bf16.
    """
    half = cos.shape[-1]
    left, right = head[:, :half].float(), head[:, half : 2 * half].float()
    cosine, sine = cos.float(), sin.float()
    rotated = (left * cosine - right * sine).bfloat16(), (right * cosine + left * sine).bfloat16()
    return torch.cat([*rotated, head[:, 2 * half :]], -1)


def rotate_pairs_apart(rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE of [n, R] bf16, element 2k paired with 2k + 1; the first elements of all pairs come first in the result.

    cos, sin: [n, R] bf16, of which the first half meets the first elements.
    """
    half = rows.shape[-1] // 2
    even, odd = rows[:, 0::2].float(), rows[:, 1::2].float()
    cosine, sine = cos.float(), sin.float()
    first = even * cosine[:, :half] - odd * sine[:, :half]
    second = odd * cosine[:, half:] + even * sine[:, half:]
    return torch.cat([first, second], -1).bfloat16()


def rotate_pairs(rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE of [n, R] bf16, element 2k paired with 2k + 1, each staying at its place. cos, sin: [n, R] bf16."""
    numbers = rows.float()
    turned = torch.empty_like(numbers)
    turned[:, 0::2], turned[:, 1::2] = -numbers[:, 1::2], numbers[:, 0::2]
    return (numbers * cos.float() + turned * sin.float()).bfloat16()
