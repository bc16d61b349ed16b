"""The named configs of the compressed scenarios 3, 4 and 5. Pure data: needs neither torch nor pypto."""

from __future__ import annotations

from functools import partial

from .config import Config

_4d = partial(
    Config,
    scenario=3,
    heads=2,
    key_size=32,
    block_size=16,
    sim_blocks=10,
    lengths=(40, 0, 23),
    padded_length=44,
    dtype="float32",
)
_alibi = partial(Config, scenario=4, heads=2, key_size=64, block_size=16, sim_blocks=10, lengths=(40, 0, 23))
_rope = partial(_alibi, scenario=5, scatter_mode="Rope")
_omni = partial(_alibi, scenario=5, scatter_mode="Omni")

# (window, offset) of the six tasks of lengths 40, 0, 23: inside, -1; empty, empty; at the start, up to the end
_SIX = ((9, 5), (7, -1), (0, 0), (0, -1), (8, 0), (10, 13))
# window 0, offset = length, the whole sequence, one token
_EDGES = ((0, 3), (4, 40), (0, 0), (3, -1), (23, 0), (1, 11))
# four sequences that begin and end inside tiles, windows longer than a tile of 64 and of 112 tokens
_LONG = (192, 160, 230, 131)
_LONG_WINDOWS = ((120, 11), (64, 67), (1, 0), (131, 0), (48, -1))
_ALIBI_WINDOWS = ((40, 0), (7, 0), (0, 0), (0, 0), (23, 0), (1, 0))
_ALIBI_LONG = ((120, 0), (64, 0), (1, 0), (131, 0), (113, 0))

_SCENARIO_3 = (
    _4d(
        name="compress_4d_rope_performance_p0",
        purpose="means of long windows, padded batches",
        scatter_mode="Rope",
        key_size=128,
        block_size=128,
        sim_blocks=12,
        npu_blocks=1024,
        lengths=_LONG,
        padded_length=256,
        windows=_LONG_WINDOWS,
        dtype="bfloat16",
    ),
    _4d(name="compress_4d_rope_function_p0", purpose="all kinds of windows", scatter_mode="Rope", windows=_SIX),
    _4d(
        name="compress_4d_rope_boundary_p0",
        purpose="window 0, offset = length, whole sequence; value wider",
        scatter_mode="Rope",
        windows=_EDGES,
        value_size=40,
        padded_length=40,
        slots="padded",
    ),
    _4d(
        name="compress_4d_omni_performance_p0",
        purpose="long windows dropped, padded batches",
        scatter_mode="Omni",
        key_size=128,
        block_size=128,
        sim_blocks=12,
        npu_blocks=1024,
        lengths=_LONG,
        padded_length=256,
        windows=_LONG_WINDOWS,
        dtype="bfloat16",
    ),
    _4d(name="compress_4d_omni_function_p0", purpose="all kinds of windows", scatter_mode="Omni", windows=_SIX),
    _4d(
        name="compress_4d_omni_boundary_p0",
        purpose="window 0, offset = length, whole sequence; fp8, int64",
        scatter_mode="Omni",
        windows=_EDGES,
        dtype="float8_e4m3fn",
        slot_dtype="int64",
        slots="contiguous",
    ),
    _4d(
        name="compress_4d_alibi_performance_p0",
        purpose="the newest tokens of padded batches",
        scatter_mode="Alibi",
        key_size=128,
        block_size=128,
        sim_blocks=12,
        npu_blocks=1024,
        lengths=_LONG,
        padded_length=256,
        windows=_ALIBI_LONG,
        dtype="bfloat16",
    ),
    _4d(
        name="compress_4d_alibi_function_p0",
        purpose="windows of 0, 1 and all tokens",
        scatter_mode="Alibi",
        windows=_ALIBI_WINDOWS,
        dtype="uint8",
    ),
    _4d(
        name="compress_4d_alibi_boundary_p0",
        purpose="odd block size, skipped tasks, value narrower",
        scatter_mode="Alibi",
        block_size=7,
        sim_blocks=20,
        windows=_ALIBI_WINDOWS,
        value_size=24,
        padded_length=40,
        slots="padded",
    ),
    _4d(name="compress_4d_rope_int8", purpose="integer means", scatter_mode="Rope", windows=_SIX, dtype="int8"),
    _4d(name="compress_4d_rope_uint16", purpose="integer means", scatter_mode="Rope", windows=_SIX, dtype="uint16"),
    _4d(
        name="compress_4d_rope_int32",
        purpose="means that sim cannot compute",
        scatter_mode="Rope",
        windows=_SIX,
        dtype="int32",
        sim_refuses="mean of int32",
    ),
    _4d(
        name="compress_4d_rope_float8",
        purpose="means that sim cannot compute",
        scatter_mode="Rope",
        windows=_SIX,
        dtype="float8_e5m2",
        sim_refuses="mean of float8_e5m2",
    ),
    _4d(
        name="compress_4d_rope_hifloat8",
        purpose="means that sim cannot compute",
        scatter_mode="Rope",
        windows=_SIX,
        dtype="hifloat8",
        sim_refuses="mean of hifloat8",
    ),
)

_SCENARIO_4 = (
    _alibi(
        name="alibi_performance_p0",
        purpose="the newest tokens of long sequences, blocks of their own",
        scatter_mode="Alibi",
        key_size=128,
        block_size=128,
        sim_blocks=16,
        npu_blocks=1024,
        lengths=_LONG,
        windows=_ALIBI_LONG,
        slots="aligned",
    ),
    _alibi(
        name="alibi_function_p0",
        purpose="windows of 0, 1 and all tokens",
        scatter_mode="Alibi",
        windows=_ALIBI_WINDOWS,
        dtype="float16",
    ),
    _alibi(
        name="alibi_boundary_p0",
        purpose="odd block size, skipped tasks, int64",
        scatter_mode="Alibi",
        block_size=7,
        sim_blocks=20,
        windows=_ALIBI_WINDOWS,
        slot_dtype="int64",
        slots="padded",
    ),
    _alibi(name="alibi_int8", purpose="int8", scatter_mode="Alibi", windows=_ALIBI_WINDOWS, dtype="int8"),
    _alibi(
        name="alibi_all_padding",
        purpose="only -1: nothing changes",
        scatter_mode="Alibi",
        windows=_ALIBI_WINDOWS,
        slots="all_padding",
    ),
)

_SCENARIO_5 = tuple(
    config
    for mode, word, make in (("rope", "averaged", _rope), ("omni", "dropped", _omni))
    for config in (
        make(
            name=f"{mode}_performance_p0",
            purpose=f"long windows {word}",
            key_size=128,
            block_size=128,
            sim_blocks=12,
            npu_blocks=1024,
            lengths=_LONG,
            windows=_LONG_WINDOWS,
        ),
        make(name=f"{mode}_function_p0", purpose=f"all kinds of windows, {word}", windows=_SIX, dtype="float16"),
        make(
            name=f"{mode}_boundary_p0",
            purpose="window 0, offset = length, whole sequence, skipped tasks",
            windows=_EDGES,
            block_size=7,
            sim_blocks=20,
            slot_dtype="int64",
            slots="padded",
        ),
        make(
            name=f"{mode}_no_gap",
            purpose="every task begins where the one before ends",
            windows=_SIX,
            slots="contiguous",
        ),
        make(name=f"{mode}_float32", purpose="fp32 (950)", windows=_SIX, dtype="float32", value_size=32),
    )
)

COMPRESSED_CONFIGS: tuple[Config, ...] = (*_SCENARIO_3, *_SCENARIO_4, *_SCENARIO_5)
