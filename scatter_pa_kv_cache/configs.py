"""The named configs that the runner and the tests run, by scenario. Pure data: needs neither torch nor pypto."""

from __future__ import annotations

from functools import partial

from .config import Config
from .configs_compressed import COMPRESSED_CONFIGS

_nz = partial(Config, scenario=1, heads=2, key_size=64, block_size=16, sim_blocks=4, tokens=21)
_field = partial(Config, scenario=2, heads=2, key_size=256, block_size=128, npu_blocks=9760)
_norm = partial(Config, scenario=2, heads=2, key_size=64, block_size=16, sim_blocks=4, tokens=21)
_nct = partial(_norm, scatter_mode="Nct")
_key = partial(_norm, scenario=6)
_nhsd = partial(Config, scenario=7, heads=8, key_size=128, block_size=16, sim_blocks=4, tokens=21, scatter_mode="NHSD")

_SCENARIO_1 = (
    _nz(
        name="pa_nz_performance_p0",
        purpose="latent key int8 512 beside value bf16 64",
        tokens=257,
        heads=1,
        key_size=512,
        value_size=64,
        block_size=128,
        sim_blocks=3,
        npu_blocks=9760,
        dtype="int8",
        value_dtype="bfloat16",
    ),
    _nz(
        name="pa_nz_function_p0",
        purpose="key 192 and value 128, as in a network",
        tokens=180,
        heads=1,
        key_size=192,
        value_size=128,
        block_size=128,
        sim_blocks=2,
        npu_blocks=9459,
        slot_dtype="int64",
    ),
    _nz(
        name="pa_nz_boundary_p0",
        purpose="odd block size, every slot written",
        tokens=272,
        key_size=272,
        block_size=17,
        sim_blocks=16,
        dtype="float16",
    ),
    _nz(name="pa_nz_5d", purpose="5-D caches, narrower value", heads=4, value_size=32, nz_rank=5),
    _nz(name="pa_nz_5d_mixed", purpose="5-D, int8 key and fp16 value", dtype="int8", value_dtype="float16", nz_rank=5),
    _nz(name="pa_nz_block_7", purpose="block size 7", block_size=7, sim_blocks=5),
    _nz(name="pa_nz_block_1", purpose="block size 1", block_size=1, sim_blocks=30),
    _nz(name="pa_nz_one_token", purpose="T = 1", tokens=1),
    _nz(name="pa_nz_float32", purpose="fp32 (950)", dtype="float32", value_size=32),
    _nz(name="pa_nz_int8", purpose="int8", dtype="int8"),
    _nz(name="pa_nz_float8", purpose="fp8 key and uint16 value (950)", dtype="float8_e4m3fn", value_dtype="uint16"),
    _nz(name="pa_nz_float4", purpose="packed fp4 (950)", dtype="float4_e2m1", key_size=128, value_size=64),
    _nz(name="pa_nz_padding", purpose="-1 first, in the middle and last", slots="padded", slot_dtype="int64"),
    _nz(name="pa_nz_all_padding", purpose="only -1: nothing changes", slots="all_padding"),
    _nz(name="pa_nz_interleaved", purpose="key and value blocks alternate in one tensor", cache_layout="interleaved"),
)

_SCENARIO_2 = (
    _field(name="config1_performance_p0", purpose="the field's performance shape", tokens=2633, sim_blocks=21),
    _field(name="config2_function_p0", purpose="the field's function shape", tokens=7902, sim_blocks=62),
    _field(name="config3_boundary_p0", purpose="the field's boundary shape", tokens=16384, sim_blocks=128),
    _field(name="full_9760_blocks", purpose="config1 with all 9760 blocks in sim", tokens=2633, sim_blocks=9760),
    _norm(name="norm_one_token", purpose="T = 1", tokens=1),
    _norm(name="norm_no_tokens", purpose="T = 0: nothing to do", tokens=0),
    _norm(name="norm_tail_of_one", purpose="four tiles of 16 and a tail of one token", tokens=65, sim_blocks=5),
    _norm(
        name="norm_65536_tokens",
        purpose="T = 65,536 in 512 blocks",
        tokens=65536,
        block_size=128,
        sim_blocks=512,
        slow=True,
    ),
    _norm(name="norm_many_tiles", purpose="twelve tiles of 16 and a tail of one token", tokens=193, sim_blocks=13),
    _norm(name="norm_value_narrower", purpose="key 192, value 128", key_size=192, value_size=128),
    _norm(name="norm_value_wider", purpose="key 48, value 80", key_size=48, value_size=80),
    _norm(name="norm_odd_head_size", purpose="rows of 5 and 3 elements", heads=1, key_size=5, value_size=3),
    _norm(name="norm_one_head", purpose="one head", heads=1),
    _norm(name="norm_block_1", purpose="block size 1", block_size=1, sim_blocks=30),
    _norm(name="norm_block_7", purpose="block size 7", block_size=7, sim_blocks=5),
    _norm(name="norm_block_128", purpose="block size 128, slots in order", block_size=128, slots="contiguous"),
    _norm(name="norm_full", purpose="every slot written", tokens=64),
    _norm(name="norm_int64_slots", purpose="int64 slots", slot_dtype="int64"),
    _norm(name="norm_float16", purpose="fp16", dtype="float16"),
    _norm(name="norm_float32", purpose="fp32 (950)", dtype="float32"),
    _norm(name="norm_int8", purpose="int8", dtype="int8"),
    _norm(name="norm_int8_odd", purpose="int8 rows of odd bytes", dtype="int8", heads=1, key_size=33, value_size=31),
    _norm(name="norm_uint32", purpose="uint32 (950)", dtype="uint32"),
    _norm(name="norm_float8", purpose="fp8 e5m2 (950)", dtype="float8_e5m2"),
    _norm(name="norm_float4", purpose="packed fp4 (950)", dtype="float4_e1m2"),
    _norm(name="norm_padding", purpose="-1 first, in the middle and last", slots="padded"),
    _norm(name="norm_all_padding", purpose="only -1: nothing changes", slots="all_padding"),
    _norm(name="norm_interleaved", purpose="key and value blocks alternate in one tensor", cache_layout="interleaved"),
    _norm(name="norm_padded_blocks", purpose="a gap after each block", cache_layout="padded_blocks"),
    _norm(name="norm_packed", purpose="key and value share each row", value_size=32, cache_layout="packed"),
    _norm(name="norm_fused_qkv", purpose="key and value are views of a QKV matrix", source_layout="fused_qkv"),
    _norm(name="norm_transposed", purpose="key and value transposed in memory", source_layout="transposed"),
    _nct(
        name="nct_performance_p0",
        purpose="key and value in place in a QKV matrix of 8 + 2 + 2 heads",
        tokens=257,
        key_size=128,
        block_size=128,
        sim_blocks=3,
        npu_blocks=9760,
        strides=(1536, 1536),
        offsets=(1024, 1280),
        source_layout="fused_qkv",
    ),
    _nct(
        name="nct_function_p0",
        purpose="two buffers, gaps between tokens, key wider than value",
        tokens=180,
        value_size=32,
        sim_blocks=12,
        dtype="float16",
        strides=(150, 71),
        offsets=(5, 0),
        slots="padded",
    ),
    _nct(
        name="nct_boundary_p0",
        purpose="tokens overlap in the buffer, every slot written",
        tokens=272,
        block_size=17,
        sim_blocks=16,
        strides=(16, 1),
        offsets=(3, 0),
    ),
    _nct(name="nct_dense", purpose="strides of a dense buffer", strides=(128, 128), slot_dtype="int64"),
    _nct(name="nct_int8", purpose="int8, odd offset", dtype="int8", strides=(130, 129), offsets=(1, 2)),
)

_SCENARIO_6 = (
    _key(
        name="key_only_performance_p0",
        purpose="a latent cache row of 576",
        tokens=257,
        heads=1,
        key_size=576,
        block_size=128,
        sim_blocks=3,
        npu_blocks=9760,
    ),
    _key(
        name="key_only_function_p0",
        purpose="fp16, skipped tokens",
        tokens=180,
        sim_blocks=12,
        dtype="float16",
        slots="padded",
    ),
    _key(
        name="key_only_boundary_p0",
        purpose="odd block size, every slot written",
        tokens=272,
        block_size=17,
        sim_blocks=16,
        slot_dtype="int64",
    ),
    _key(name="key_only_int8", purpose="int8", dtype="int8"),
    _key(
        name="key_only_nct",
        purpose="from a strided buffer",
        scatter_mode="Nct",
        strides=(192, 1),
        offsets=(64, 0),
    ),
)

_SCENARIO_7 = (
    _nhsd(
        name="nhsd_performance_p0",
        purpose="eight heads of 128",
        tokens=257,
        block_size=128,
        sim_blocks=3,
        npu_blocks=1024,
    ),
    _nhsd(
        name="nhsd_function_p0",
        purpose="fp16, value narrower, skipped tokens",
        dtype="float16",
        value_size=64,
        slots="padded",
    ),
    _nhsd(
        name="nhsd_boundary_p0",
        purpose="odd block size, every slot written, int64",
        tokens=51,
        block_size=17,
        sim_blocks=3,
        slot_dtype="int64",
    ),
    _nhsd(name="nhsd_one_head", purpose="one head", heads=1, key_size=32),
    _nhsd(name="nhsd_int8", purpose="int8", dtype="int8", heads=4, key_size=32),
    _nhsd(
        name="nhsd_interleaved",
        purpose="key and value blocks alternate in one tensor",
        heads=4,
        cache_layout="interleaved",
    ),
)

CONFIGS: tuple[Config, ...] = (
    *_SCENARIO_1,
    *_SCENARIO_2,
    *COMPRESSED_CONFIGS,
    *_SCENARIO_6,
    *_SCENARIO_7,
)
