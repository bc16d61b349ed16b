"""GLM-style fused pre-attention: norm, quantised linear, RoPE, K and V scattered (SK-05); then attention on the cache.

Two kernels, launched one after the other. PyPTO makes a read of a cache wait for its last write only, and the tiles'
scatters do not wait for each other: in one kernel the attention could start before the first tiles are written.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import pypto

from .block_gather import gather_blocks
from .cache_scatter import index_tile, scatter_rows
from .options import jit_options
from .stages import BF16, FP32, columns, join, rms_norm_bias, rows_of, to_bf16, to_fp32, to_int8
from .tail_block import tile_bounds, token_tiles

EPSILON = 1e-5


@cache
def pre_attention_kernel(hidden, heads, size, rotary, tile, quantised, stage):
    """Phase 1. Tokens and cache rows are dynamic.

    hidden: elements of a token. heads: query heads, beside one key and one value head, of ``size`` elements, of which
    the first ``rotary`` are rotated. quantised: an int8 linear with int32 bias; else a bf16 one, for which q_scale,
    q_offset, bias and deq_scale are not read. query [T, heads * size] and residual_out [T, hidden] are written.
    """
    dynamic = pypto.DYNAMIC
    width = (heads + 2) * size

    @pypto.frontend.jit(**jit_options(stage))
    def pre_attention(
        x: pypto.Tensor([dynamic, hidden], BF16),
        residual: pypto.Tensor([dynamic, hidden], BF16),
        gamma: pypto.Tensor([1, hidden], BF16),
        beta: pypto.Tensor([1, hidden], BF16),
        q_scale: pypto.Tensor([1, hidden], BF16),
        q_offset: pypto.Tensor([1, hidden], BF16),
        weight: pypto.Tensor([hidden, width], pypto.DT_INT8 if quantised else BF16),
        bias: pypto.Tensor([1, width], pypto.DT_INT32),
        deq_scale: pypto.Tensor([1, width], FP32),
        query_gamma: pypto.Tensor([1, size], BF16),
        query_beta: pypto.Tensor([1, size], BF16),
        key_gamma: pypto.Tensor([1, size], BF16),
        key_beta: pypto.Tensor([1, size], BF16),
        cos: pypto.Tensor([dynamic, rotary // 2], BF16),
        sin: pypto.Tensor([dynamic, rotary // 2], BF16),
        index: pypto.Tensor([1, dynamic], pypto.DT_INT32),
        key_cache: pypto.Tensor([dynamic, dynamic, 1, size], BF16),
        value_cache: pypto.Tensor([dynamic, dynamic, 1, size], BF16),
        key_rows: pypto.Tensor([dynamic, size], BF16),
        value_rows: pypto.Tensor([dynamic, size], BF16),
        residual_out: pypto.Tensor([dynamic, hidden], BF16),
        query: pypto.Tensor([dynamic, heads * size], BF16),
    ):
        num_tokens = index.shape[1]
        for number in token_tiles(num_tokens, tile):
            first, count = tile_bounds(number, num_tokens, tile)
            names = index_tile(index, first, count, tile)
            pypto.set_vec_tile_shapes(tile, hidden)
            total = to_fp32(rows_of(residual, first, count, tile)) + to_fp32(rows_of(x, first, count, tile))
            pypto.assemble(to_bf16(total), [first, 0], residual_out)
            normed = rms_norm_bias(total, gamma, beta, EPSILON)
            if quantised:
                qkv = int8_linear(normed, q_scale, q_offset, weight, bias, deq_scale)
            else:
                qkv = bf16_linear(normed, weight)
            pypto.set_vec_tile_shapes(tile, size)
            angles = rows_of(cos, first, count, tile), rows_of(sin, first, count, tile)
            for head in range(heads):
                rows = columns(qkv, head * size, size, count)
                rotated = norm_and_rotate(rows, query_gamma, query_beta, angles, count)
                pypto.assemble(rotated, [first, head * size], query)
            key = norm_and_rotate(columns(qkv, heads * size, size, count), key_gamma, key_beta, angles, count)
            scatter_rows(key_rows, key_cache, names, key)
            scatter_rows(value_rows, value_cache, names, columns(qkv, (heads + 1) * size, size, count))

    return pre_attention


def int8_linear(rows, q_scale, q_offset, weight, bias, deq_scale):
    """Quantise per channel with static parameters, multiply in int32, add the bias in int32, scale back: bf16 to bf16.

    rows: [n, H]. q_scale (it multiplies), q_offset: [1, H] bf16. weight: [H, N] int8. bias: [1, N] int32.
    deq_scale: [1, N] fp32. Sets the vector tile to [n, N].
    """
    quantised = to_int8(to_fp32(rows) * to_fp32(q_scale) + to_fp32(q_offset))
    product = multiply(quantised, weight, pypto.DT_INT32)
    pypto.set_vec_tile_shapes(rows.shape[0], weight.shape[1])
    return to_bf16(to_fp32(product + bias) * deq_scale)


def bf16_linear(rows, weight):
    """[n, H] bf16 by [H, N] bf16, added in fp32, rounded once to bf16. Sets the vector tile to [n, N]."""
    product = multiply(rows, weight, FP32)
    pypto.set_vec_tile_shapes(rows.shape[0], weight.shape[1])
    return to_bf16(product)


def multiply(rows, weight, dtype):
    """The product on the cube unit: its tile covers H, so that no sum is cut in two."""
    hidden = weight.shape[0]
    pypto.set_cube_tile_shapes([16, 16], [hidden, hidden], [64, 64])
    return pypto.matmul(rows, weight, dtype)


def norm_and_rotate(head, gamma, beta, angles, count):
    """RMSNorm with bias of one head [n, D] bf16, then RoPE of its first columns; the others pass."""
    normed = rms_norm_bias(to_fp32(head), gamma, beta, EPSILON)
    cos, sin = to_fp32(angles[0]), to_fp32(angles[1])
    half = cos.shape[1]
    left, right = to_fp32(columns(normed, 0, half, count)), to_fp32(columns(normed, half, half, count))
    rotated = [to_bf16(left * cos - right * sin), to_bf16(right * cos + left * sin)]
    rest = normed.shape[1] - 2 * half
    return join([*rotated, columns(normed, 2 * half, rest, count)] if rest else rotated, count)


@cache
def decode_attention_kernel(heads, size, block_size, tile_blocks, stage):
    """Phase 2: flash-style attention of each token on its sequence's cache rows, read by AT-17.

    Tokens T, sequences B and cache rows are dynamic; T // B tokens of a sequence stand together, the last one seeing
    ``lengths`` rows. query, attention: [T * heads, size]; a token without rows leaves attention as it is.
    block_size: rows of a block; tile_blocks: blocks of a step. Entries of block_table [B, C] past a length: anything.
    """
    dynamic = pypto.DYNAMIC
    span = tile_blocks * block_size

    @pypto.frontend.jit(**jit_options(stage))
    def decode_attention(
        query: pypto.Tensor([dynamic, size], BF16),
        key_rows: pypto.Tensor([dynamic, size], BF16),
        value_rows: pypto.Tensor([dynamic, size], BF16),
        block_table: pypto.Tensor([dynamic, dynamic], pypto.DT_INT32),
        lengths: pypto.Tensor([dynamic], pypto.DT_INT32),
        attention: pypto.Tensor([dynamic, size], BF16),
    ):
        num_tokens = query.shape[0] // heads
        together = num_tokens // lengths.shape[0]
        for token in pypto.loop(num_tokens, name="tokens", idx_name="token", unroll_list=[1]):
            sequence = token // together
            length = lengths[sequence] - (together - 1 - token % together)
            pypto.set_vec_tile_shapes(heads, size)
            state = softmax_state(heads, size)
            for number in pypto.loop((length + span - 1) // span, name="keys", idx_name="number", unroll_list=[1]):
                count = (length - number * span).min(span)
                pypto.set_vec_tile_shapes(block_size, size)
                place = (block_table, sequence, number * tile_blocks, tile_blocks, block_size)
                keys = gather_blocks(key_rows, *place, span, size)
                values = gather_blocks(value_rows, *place, count, size)
                pypto.set_vec_tile_shapes(heads, size)
                scores = attention_scores(pypto.view(query, [heads, size], [token * heads, 0]), keys, count)
                add_span(state, scores, values, number)
                if pypto.is_loop_end(number):
                    pypto.assemble(to_bf16(state.output / state.total), [token * heads, 0], attention)

    return decode_attention


@dataclass
class SoftmaxState:
    """What a softmax over spans carries on, fp32: peak and total [heads, 1], output [heads, D]."""

    peak: Any
    total: Any
    output: Any


def softmax_state(heads, size):
    """The state before the first span, which sets it."""
    return SoftmaxState(
        pypto.tensor([heads, 1], FP32, "peak"),
        pypto.tensor([heads, 1], FP32, "total"),
        pypto.tensor([heads, size], FP32, "output"),
    )


def attention_scores(query, keys, count):
    """``query @ keys.T * D**-0.5`` in fp32, of which ``count`` columns are valid.

    All keys are multiplied, also those past the end, and the scores cut: a product of a shape that depends on data is
    added up in another order from one compiler pass to the next.
    """
    heads, size = query.shape
    span = keys.shape[0]
    pypto.set_cube_tile_shapes([16, 16], [size, size], [span, span])
    scores = pypto.matmul(query, keys, FP32, b_trans=True)
    return pypto.view(scores, [heads, span], [0, 0], valid_shape=[heads, count]) * size**-0.5


def add_span(state, scores, values, number):
    """Add a span of scores [heads, S] and values [S, D] to ``state``; number: 0 for the first.

    Weights are rounded to bf16 for the product with values; their total takes them unrounded.
    """
    span, size = values.shape
    top = pypto.amax(scores, -1, True)
    pypto.set_cube_tile_shapes([16, 16], [span, span], [size, size])
    if pypto.cond(pypto.is_loop_begin(number)):
        weights = pypto.exp(scores - top)
        state.peak[:] = top
        state.total[:] = pypto.sum(weights, -1, True)
        state.output[:] = pypto.matmul(to_bf16(weights), values, FP32)
    else:
        peak = pypto.maximum(state.peak, top)
        weights = pypto.exp(scores - peak)
        rescale = pypto.exp(state.peak - peak)
        state.peak[:] = peak
        state.total[:] = state.total * rescale + pypto.sum(weights, -1, True)
        state.output[:] = state.output * rescale + pypto.matmul(to_bf16(weights), values, FP32)
