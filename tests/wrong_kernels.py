"""Kernels for the tests of sim: a right one, and some that are wrong, fail, end the process or talk, on purpose.

The tensors of each: source [T, row], index [1, T] int32, and a cache twice: [R, 1, 1, row], read, and
[R, row], written.
"""

import ctypes
import logging
import os
import sys
import time

import pypto

from scatter_pa_kv_cache.patterns.options import PYPTO_DTYPES, jit_options

ROW, TILE = 16, 4


def _nothing(rows):
    return rows


def _min(tokens):
    return tokens.min(TILE)


def _whole(tokens):
    return TILE


def _tiles_up(tokens):
    return (tokens + TILE - 1) // TILE


def _tiles_down(tokens):
    return tokens // TILE


def scatter_kernel(stage, dtype="bfloat16", vec_rows=TILE, valid=_min, tiles=_tiles_up, change=_nothing):
    """The right kernel, unless told otherwise. change: what happens to the rows of a tile on their way."""
    element = PYPTO_DTYPES[dtype]

    @pypto.frontend.jit(**jit_options(stage))
    def scatter(
        source: pypto.Tensor([pypto.DYNAMIC, ROW], element),
        index: pypto.Tensor([1, pypto.DYNAMIC], pypto.DT_INT32),
        cache: pypto.Tensor([pypto.DYNAMIC, 1, 1, ROW], element),
        cache_rows: pypto.Tensor([pypto.DYNAMIC, ROW], element),
    ):
        tokens = source.shape[0]
        for number in pypto.loop(tiles(tokens), name="tokens", idx_name="number", unroll_list=[1]):
            first = number * TILE
            count = valid(tokens - first)
            pypto.set_vec_tile_shapes(vec_rows, ROW)
            names = pypto.view(index, [1, TILE], [0, first], valid_shape=[1, count])
            rows = pypto.view(source, [TILE, ROW], [first, 0], valid_shape=[count, ROW])
            written = change(rows)
            cache_2d = pypto.reshape(cache, [cache_rows.shape[0], ROW], inplace=True)
            cache_rows.move(pypto.scatter_update(cache_2d, -2, names, written))

    return scatter


def _add_one(rows):
    return rows + 1


def off_by_one_kernel(stage, dtype):
    return scatter_kernel(stage, dtype, change=_add_one)


def small_vec_tile_kernel(stage):
    """The vector tile is smaller than the view: compiler passes go wrong, the tensor graph does not."""
    return scatter_kernel(stage, vec_rows=TILE // 2)


def overlong_tail_kernel(stage):
    """The last tile claims to be a whole one."""
    return scatter_kernel(stage, valid=_whole)


def lost_tail_kernel(stage):
    return scatter_kernel(stage, tiles=_tiles_down)


def unparsable_kernel(stage):
    @pypto.frontend.jit(**jit_options(stage))
    def unparsable(source: pypto.Tensor([pypto.DYNAMIC, ROW], pypto.DT_BF16)):
        while source:
            pass

    return unparsable


def ending_kernel(stage, way):
    """Its process ends amid compilation."""
    ways = {"exit": lambda: os._exit(3), "abort": os.abort, "fault": lambda: ctypes.string_at(0), "leave": sys.exit}

    def end(rows):
        print("these are the last words")
        ways[way]()
        return rows

    return scatter_kernel(stage, change=end)


def stalling_kernel(stage, file, seconds):
    """It makes ``file`` (with the process id) and sleeps while PyPTO compiles it."""

    def stall(rows):
        with open(file, "w") as mark:
            mark.write(str(os.getpid()))
        time.sleep(seconds)
        return rows

    return scatter_kernel(stage, change=stall)


def talking_kernel(stage):
    def talk(rows):
        print("talk by print")
        print("talk by stderr", file=sys.stderr)
        os.write(1, b"talk by descriptor\n")
        logging.getLogger("pypto").critical("talk by logging")
        return rows

    return scatter_kernel(stage, change=talk)
