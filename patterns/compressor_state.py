"""Compressor state: new rows placed through a block table, windows seen with them, and completed windows reduced.

A sequence's state is a row a token, in blocks. ``ratio`` rows make a window; a window lies in one block. The persistent
state is written by rectangles; the scatter works on a copy of the window, for which its index counts rows inside it.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import pypto

from .block_gather import block_of
from .cache_scatter import run_index, updated_rows
from .options import jit_options
from .stages import BF16, FP32, rms_norm, rows_of, to_bf16, to_fp32

EPSILON = 1e-6
INT32 = pypto.DT_INT32


@cache
def compressor_state_kernel(width, ratio, tokens, block_size, overlap, rotary, stage):
    """Sequences and state rows are dynamic; ``tokens`` of each sequence are new, at most ratio.

    width: elements of a state row, block_size % ratio == 0. overlap: a completed window is reduced together with the
    one before, of which the first half of each row counts, and the second half of its own. rotary: elements of ``out``
    that are rotated. States are in/out pairs; window_kv and window_score [B * ratio, width], pooled [B, D] and out
    [B, D] are written, the last two for completed windows only.
    """
    dynamic = pypto.DYNAMIC
    size = width // 2 if overlap else width

    @pypto.frontend.jit(**jit_options(stage))
    def compressor_state(
        kv: pypto.Tensor([dynamic, width], FP32),
        score: pypto.Tensor([dynamic, width], FP32),
        ape: pypto.Tensor([ratio, width], FP32),
        places: pypto.Tensor([1, ratio], INT32),
        block_table: pypto.Tensor([dynamic, dynamic], INT32),
        start: pypto.Tensor([dynamic], INT32),
        weight: pypto.Tensor([1, size], FP32),
        cos: pypto.Tensor([dynamic, rotary], BF16),
        sin: pypto.Tensor([dynamic, rotary], BF16),
        swap: pypto.Tensor([rotary, rotary], BF16),
        kv_state: pypto.Tensor([dynamic, width], FP32),
        score_state: pypto.Tensor([dynamic, width], FP32),
        kv_rows: pypto.Tensor([dynamic, width], FP32),
        score_rows: pypto.Tensor([dynamic, width], FP32),
        window_kv: pypto.Tensor([dynamic, width], FP32),
        window_score: pypto.Tensor([dynamic, width], FP32),
        pooled: pypto.Tensor([dynamic, size], FP32),
        out: pypto.Tensor([dynamic, size], BF16),
    ):
        for number in pypto.loop(start.shape[0], name="sequences", idx_name="number", unroll_list=[1]):
            begin = start[number]
            place = begin % ratio
            count = (ratio - place).min(tokens)
            row = row_of(begin, block_table, number, block_size)
            new = new_rows(kv, score, ape, number * tokens, place, count, tokens)
            pypto.assemble(new.kv, [row, 0], kv_rows)
            pypto.assemble(new.score, [row, 0], score_rows)
            index = run_index(places, place, count, tokens)
            window = Rows(
                updated_rows(rows_of(kv_state, row - place, ratio, ratio), index, new.kv),
                updated_rows(rows_of(score_state, row - place, ratio, ratio), index, new.score),
            )
            pypto.set_vec_tile_shapes(ratio, width)
            keep_window(window, window_kv, window_score, number * ratio)
            if place + tokens >= ratio:
                result = (weight, cos, sin, swap, pooled, out, number)
                if overlap:
                    own = halved(window, size)
                    if begin >= ratio:
                        row_before = row_of(begin - place - ratio, block_table, number, block_size)
                        reduce_window(with_window_before(own, kv_state, score_state, row_before), *result)
                    else:
                        reduce_window(own, *result)
                else:
                    reduce_window(window, *result)
            for _ in pypto.loop((tokens - count).min(1), name="overshoot", idx_name="once", unroll_list=[1]):
                row = row_of(begin + count, block_table, number, block_size)
                rest = new_rows(kv, score, ape, number * tokens + count, 0, tokens - count, tokens)
                pypto.assemble(rest.kv, [row, 0], kv_rows)
                pypto.assemble(rest.score, [row, 0], score_rows)

    return compressor_state


@dataclass
class Rows:
    """The same rows of both states, [n, W] fp32 each."""

    kv: Any
    score: Any


def row_of(position, block_table, sequence, block_size):
    """The state row of a position of a sequence: a scalar."""
    return block_of(block_table, sequence, position // block_size) * block_size + position % block_size


def new_rows(kv, score, ape, first, place, count, tokens):
    """``count`` new rows from row ``first`` on, at most ``tokens``; the first lies at ``place`` of its window.

    kv, score: [B*tokens, W]; ape: [ratio, W], added to the score. Sets the vector tile to [tokens, W].
    """
    pypto.set_vec_tile_shapes(tokens, kv.shape[1])
    added = rows_of(score, first, count, tokens) + rows_of(ape, place, count, tokens)
    return Rows(rows_of(kv, first, count, tokens), added)


def keep_window(window, window_kv, window_score, first):
    """Copy a window out, to row ``first`` of both parameters.

    Times 1: a bare copy is folded into the scatter, which then writes into the parameter as if ``first`` were 0.
    """
    pypto.assemble(window.kv * 1.0, [first, 0], window_kv)
    pypto.assemble(window.score * 1.0, [first, 0], window_score)


def halved(window, size):
    """The second half of each row."""
    rows = window.kv.shape[0]
    return Rows(*(pypto.view(state, [rows, size], [0, size]) for state in (window.kv, window.score)))


def with_window_before(own, kv_state, score_state, row):
    """The window at state row ``row``, of whose rows the first half counts, and then ``own`` [ratio, D]."""
    ratio, size = own.kv.shape
    pypto.set_vec_tile_shapes(ratio, size)
    before = Rows(*(rows_of(state, row, ratio, ratio, size) for state in (kv_state, score_state)))
    return Rows(pypto.concat([before.kv, own.kv], 0), pypto.concat([before.score, own.score], 0))


def reduce_window(rows, weight, cos, sin, swap, pooled, out, number):
    """Reduce rows [n, D] to row ``number`` of pooled, and by norm and RoPE of the last R columns to that of out.

    cos, sin: [B, R] bf16; weight: [1, D] fp32. swap: [R, R] bf16, which takes (a, b) to (-b, a) pair by pair: a product
    with 0, 1 and -1 is exact, and moves elements along a row, which vector operations can do only through memory.
    """
    count, size = rows.kv.shape
    pypto.set_vec_tile_shapes(count, size)
    total = weighted_sum(rows)
    pypto.assemble(total, [number, 0], pooled)
    pypto.set_vec_tile_shapes(1, size)
    normed = rms_norm(to_fp32(to_bf16(total)), weight, EPSILON)
    width = cos.shape[1]
    taken = pypto.view(normed, [1, width], [0, size - width])
    pypto.set_cube_tile_shapes([16, 16], [width, width], [width, width])
    turned = pypto.matmul(taken, swap, FP32)
    pypto.set_vec_tile_shapes(1, width)
    angles = [to_fp32(rows_of(table, number, 1, 1)) for table in (cos, sin)]
    rotated = to_fp32(taken) * angles[0] + turned * angles[1]
    pypto.assemble(to_bf16(rotated), [number, size - width], out)
    if size > width:
        pypto.assemble(pypto.view(normed, [1, size - width], [0, 0]), [number, 0], out)


def weighted_sum(rows):
    """``sum(kv * softmax(score))`` down each column: [n, D] to [1, D]."""
    weights = pypto.exp(rows.score - pypto.amax(rows.score, 0, True))
    return pypto.sum(rows.kv * (weights / pypto.sum(weights, 0, True)), 0, True)
