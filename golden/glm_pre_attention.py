"""GLM-style pre-attention with a paged cache, and the decode attention that reads it: what the kernels should leave."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .slots import bits, live_tokens
from .stages import rms_norm_bias, rotate_halves, to_int8

EPSILON = 1e-5


@dataclass(frozen=True)
class Weights:
    """Parameters of the layer. H: hidden size; D: head size; N: (query heads + 2) * D columns of the linear.

    gamma, beta [H] and those of query and key [D], bf16. weight: int8 [H, N] with q_scale (it multiplies) and q_offset
    [H] bf16, bias [N] int32 and deq_scale [N] fp32; or bf16 [H, N], with which the four are not used.
    """

    gamma: Tensor
    beta: Tensor
    q_scale: Tensor
    q_offset: Tensor
    weight: Tensor
    bias: Tensor
    deq_scale: Tensor
    query_gamma: Tensor
    query_beta: Tensor
    key_gamma: Tensor
    key_beta: Tensor


def pre_attention(
    x: Tensor,
    residual: Tensor,
    weights: Weights,
    cos: Tensor,
    sin: Tensor,
    slot_mapping: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
) -> tuple[Tensor, Tensor]:
    """Update both caches in place and return query [T, heads * D] and the new residual [T, H], bf16 both.

    x, residual: [T, H] bf16; cos, sin: [T, R/2] bf16, R rotated columns; slot_mapping: [T] integers, negative for
    padding; caches: [NB, BS, 1, D] bf16. The norm takes the sum of x and residual before it is rounded.
    """
    total = residual.float() + x.float()
    normed = rms_norm_bias(total, weights.gamma, weights.beta, EPSILON)
    size = key_cache.shape[-1]
    parts = linear(normed, weights).split(size, -1)
    query = [_norm_and_rotate(part, weights.query_gamma, weights.query_beta, cos, sin) for part in parts[:-2]]
    key = _norm_and_rotate(parts[-2], weights.key_gamma, weights.key_beta, cos, sin)
    for cache, rows in ((key_cache, key), (value_cache, parts[-1])):
        tokens, slots = live_tokens(slot_mapping, cache.shape[0] * cache.shape[1])
        bits(cache).view(-1, size)[slots] = bits(rows.contiguous())[tokens]
    return torch.cat(query, -1), total.bfloat16()


def linear(normed: Tensor, weights: Weights) -> Tensor:
    """[T, H] bf16 to [T, N] bf16. Quantised: products, sums and bias are exact integers, scaled back by one product."""
    if weights.weight.dtype != torch.int8:
        return (normed.float() @ weights.weight.float()).bfloat16()
    quantised = to_int8(normed.float() * weights.q_scale.float() + weights.q_offset.float())
    product = quantised.int() @ weights.weight.int() + weights.bias
    return (product.float() * weights.deq_scale).bfloat16()


def _norm_and_rotate(head: Tensor, gamma: Tensor, beta: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return rotate_halves(rms_norm_bias(head.float(), gamma, beta, EPSILON), cos, sin)


def decode_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, block_table: Tensor, lengths: Tensor, tile_blocks: int
) -> Tensor:
    """Attention of each token over its sequence's cache rows: [T, heads, D] bf16, zeros where a token sees no row.

    query: [T, heads, D] bf16; caches: [NB, BS, 1, D] bf16; block_table: [B, C] and lengths: [B] integers. T // B tokens
    of a sequence stand together; the last sees ``lengths`` rows, the one before one less. Spans of ``tile_blocks``
    blocks are added one by one, as the kernel does: weights are rounded to bf16 for the product with values only.
    """
    num_tokens, _, size = query.shape
    block_size = key_cache.shape[1]
    together = num_tokens // len(lengths)
    attention = torch.zeros_like(query)
    for token in range(num_tokens):
        sequence = token // together
        length = int(lengths[sequence]) - (together - 1 - token % together)
        positions = torch.arange(max(length, 0), device=query.device)
        slots = block_table[sequence].long()[positions // block_size] * block_size + positions % block_size
        for number, rows in enumerate(slots.split(tile_blocks * block_size) if length > 0 else ()):
            keys, values = (cache.view(-1, size)[rows].float() for cache in (key_cache, value_cache))
            scores = query[token].float() @ keys.T * size**-0.5
            top = scores.amax(-1, keepdim=True)
            if number == 0:
                peak, weights = top, torch.exp(scores - top)
                total = weights.sum(-1, keepdim=True)
                output = weights.bfloat16().float() @ values
            else:
                higher = torch.maximum(peak, top)
                weights, rescale = torch.exp(scores - higher), torch.exp(peak - higher)
                peak, total = higher, total * rescale + weights.sum(-1, keepdim=True)
                output = output * rescale + weights.bfloat16().float() @ values
        if length > 0:
            attention[token] = (output / total).bfloat16()
    return attention
