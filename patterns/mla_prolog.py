"""MLA prolog: norm, quantise and rotate the compressed KV of new tokens, and scatter several caches with one index.

The caches of a token are its rotated part, its nope part and the scales of that; nope is int8 with a scale a group, or
bf16 without any. One in/out pair a cache, no tile waits for another.
"""

from functools import cache

import pypto

from .cache_scatter import index_tile, scatter_rows
from .options import jit_options
from .stages import BF16, FP32, columns, join, rms_norm, rows_of, to_bf16, to_fp32, to_int8
from .tail_block import tile_bounds, token_tiles

EPSILON = 1e-5
LEAST = 2.0**-120  # 127 / LEAST is finite


@cache
def mla_prolog_kernel(nope, rope, groups, tile, stage):
    """Quantised: tokens and cache rows are dynamic.

    nope, rope: elements of the two parts of a token; groups: scales of a token. pairs is the memory of kv, as pairs.
    """
    dynamic = pypto.DYNAMIC

    @pypto.frontend.jit(**jit_options(stage))
    def mla_prolog(
        kv: pypto.Tensor([dynamic, nope + rope], BF16),
        pairs: pypto.Tensor([dynamic, (nope + rope) // 2, 2], BF16),
        gamma: pypto.Tensor([1, nope], BF16),
        cos: pypto.Tensor([dynamic, rope], BF16),
        sin: pypto.Tensor([dynamic, rope], BF16),
        index: pypto.Tensor([1, dynamic], pypto.DT_INT64),
        rope_cache: pypto.Tensor([dynamic, dynamic, 1, rope], BF16),
        nope_cache: pypto.Tensor([dynamic, dynamic, 1, nope], pypto.DT_INT8),
        scale_cache: pypto.Tensor([dynamic, dynamic, 1, groups], FP32),
        rope_rows: pypto.Tensor([dynamic, rope], BF16),
        nope_rows: pypto.Tensor([dynamic, nope], pypto.DT_INT8),
        scale_rows: pypto.Tensor([dynamic, groups], FP32),
    ):
        num_tokens = index.shape[1]
        for number in token_tiles(num_tokens, tile):
            first, count = tile_bounds(number, num_tokens, tile)
            names = index_tile(index, first, count, tile)
            rotated = rotate_pairs(pairs, cos, sin, first, count, tile)
            scatter_rows(rope_rows, rope_cache, names, rotated)
            pypto.set_vec_tile_shapes(tile, nope)
            normed = rms_norm(to_fp32(rows_of(kv, first, count, tile, nope)), to_fp32(gamma), EPSILON)
            quantised, scales = quantise_groups(normed, groups, count)
            scatter_rows(nope_rows, nope_cache, names, quantised)
            pypto.set_vec_tile_shapes(tile, groups)
            scatter_rows(scale_rows, scale_cache, names, scales)

    return mla_prolog


@cache
def mla_prolog_bf16_kernel(nope, rope, tile, stage):
    """Not quantised: as :func:`mla_prolog_kernel`, without scales."""
    dynamic = pypto.DYNAMIC

    @pypto.frontend.jit(**jit_options(stage))
    def mla_prolog_bf16(
        kv: pypto.Tensor([dynamic, nope + rope], BF16),
        pairs: pypto.Tensor([dynamic, (nope + rope) // 2, 2], BF16),
        gamma: pypto.Tensor([1, nope], BF16),
        cos: pypto.Tensor([dynamic, rope], BF16),
        sin: pypto.Tensor([dynamic, rope], BF16),
        index: pypto.Tensor([1, dynamic], pypto.DT_INT64),
        rope_cache: pypto.Tensor([dynamic, dynamic, 1, rope], BF16),
        nope_cache: pypto.Tensor([dynamic, dynamic, 1, nope], BF16),
        rope_rows: pypto.Tensor([dynamic, rope], BF16),
        nope_rows: pypto.Tensor([dynamic, nope], BF16),
    ):
        num_tokens = index.shape[1]
        for number in token_tiles(num_tokens, tile):
            first, count = tile_bounds(number, num_tokens, tile)
            names = index_tile(index, first, count, tile)
            rotated = rotate_pairs(pairs, cos, sin, first, count, tile)
            scatter_rows(rope_rows, rope_cache, names, rotated)
            pypto.set_vec_tile_shapes(tile, nope)
            normed = rms_norm(to_fp32(rows_of(kv, first, count, tile, nope)), to_fp32(gamma), EPSILON)
            scatter_rows(nope_rows, nope_cache, names, normed)

    return mla_prolog_bf16


def rotate_pairs(pairs, cos, sin, first, count, tile):
    """RoPE of the last columns of a tile of tokens; the first elements of all pairs come first, and stay there.

    pairs: [T, W/2, 2] bf16, of which the last R/2 pairs are rotated; cos, sin: [T, R] bf16. Returns [tile, R] bf16, and
    leaves the vector tile at that. The pairs are read as such from memory: a tile of rows with a tail cannot be
    reshaped to pairs, its valid shape is lost on the way.
    """
    width = cos.shape[1]
    half = width // 2
    lanes = 16  # of bf16 in 32 bytes, to which a vector tile's last axis is rounded up
    pypto.set_vec_tile_shapes(tile, half, lanes)
    taken = pypto.view(pairs, [tile, half, 2], [first, pairs.shape[1] - half, 0], valid_shape=[count, half, 2])
    split = pypto.transpose(to_fp32(taken), 1, 2)
    pypto.set_vec_tile_shapes(tile, 2, half)
    rows = pypto.reshape(split, [tile, width], valid_shape=[count, width])
    pypto.set_vec_tile_shapes(tile, width)
    even, odd = columns(rows, 0, half, count), columns(rows, half, half, count)
    cosines = [to_fp32(rows_of(cos, first, count, tile, half, part * half)) for part in range(2)]
    sines = [to_fp32(rows_of(sin, first, count, tile, half, part * half)) for part in range(2)]
    rotated = [even * cosines[0] - odd * sines[0], odd * cosines[1] + even * sines[1]]
    return to_bf16(join(rotated, count))


def quantise_groups(rows, groups, count):
    """Symmetric, dynamic int8 of each group of each row: [n, W] bf16 to [n, W] int8 and the scales [n, groups] fp32.

    A number is its int8 times its group's scale. Where all of a group is 0, so are its int8s and its scale.
    """
    n, width = rows.shape
    part = width // groups
    quantised, scales = [], []
    for group in range(groups):
        numbers = to_fp32(columns(rows, group * part, part, count))
        largest = pypto.amax(pypto.abs(numbers), -1, True)
        limit = pypto.full([n, 1], 127.0, FP32, valid_shape=[count, 1])
        factor = limit / pypto.maximum(largest, LEAST)
        quantised.append(to_int8(numbers * factor))
        scales.append(pypto.minimum(pypto.reciprocal(factor), largest))
    return join(quantised, count), join(scales, count)
