"""The table of configs and the inputs made of it."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import _checkout  # noqa: F401
import pytest
import torch
from torch import Tensor

from scatter_pa_kv_cache.arguments import normalise
from scatter_pa_kv_cache.checker import same_bits
from scatter_pa_kv_cache.config import CACHE_LAYOUTS, SLOTS, SOURCE_LAYOUTS, Config
from scatter_pa_kv_cache.configs import CONFIGS
from scatter_pa_kv_cache.data_rules import check_data
from scatter_pa_kv_cache.golden.slots import bits
from scatter_pa_kv_cache.inputs import make_inputs
from scatter_pa_kv_cache.rules import choose
from scatter_pa_kv_cache.scenarios import SCENARIOS

CONFIG = {config.name: config for config in CONFIGS}
SMALL = [config for config in CONFIGS if not config.slow]
KERNELS = sorted({config.module for config in CONFIGS})


def tensors(inputs: dict[str, Any]) -> dict[str, Tensor]:
    return {name: given for name, given in inputs.items() if isinstance(given, Tensor)}


def test_names_are_unique() -> None:
    assert len(CONFIG) == len(CONFIGS)


def test_every_scenario_and_mode_has_configs() -> None:
    assert {(config.scenario, config.scatter_mode) for config in CONFIGS} == {
        (row.number, mode) for row in SCENARIOS for mode in row.scatter_modes
    }


def test_every_slot_pattern_and_layout_is_used() -> None:
    assert {config.slots for config in CONFIGS} == set(SLOTS)
    assert {config.source_layout for config in CONFIGS} == set(SOURCE_LAYOUTS)
    assert {config.cache_layout for config in CONFIGS} == set(CACHE_LAYOUTS)


@pytest.mark.parametrize("kernel", [name for name in KERNELS if name not in ("norm", "compress_4d")])
@pytest.mark.parametrize("what", ["performance_p0", "function_p0", "boundary_p0"])
def test_every_kernel_has_the_three_levels(kernel: str, what: str) -> None:
    assert CONFIG[f"{kernel}_{what}"].module == kernel


@pytest.mark.parametrize(
    ("name", "tokens", "blocks"),
    [("config1_performance_p0", 2633, 21), ("config2_function_p0", 7902, 62), ("config3_boundary_p0", 16384, 128)],
)
def test_the_configs_of_the_field(name: str, tokens: int, blocks: int) -> None:
    config = CONFIG[name]
    assert config.source_shape("key") == config.source_shape("value") == (tokens, 2, 256)
    assert config.cache_shape("key", "npu") == (9760, 128, 2, 256)
    assert config.cache_shape("value", "sim") == (blocks, 128, 2, 256)
    assert (config.dtype, config.slot_dtype, config.slots) == ("bfloat16", "int32", "random")


@pytest.mark.parametrize("config", SMALL, ids=lambda config: config.name)
def test_the_rules_accept_every_config(config: Config) -> None:
    arguments = normalise(**make_inputs(config))
    choice = choose(arguments.spec)
    if config.tokens == 0 and not config.lengths:
        assert choice is None
        return
    assert choice is not None
    assert (choice.scenario.number, choice.module) == (config.scenario, config.module)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_data(arguments, choice)


@pytest.mark.parametrize("name", ["norm_padded_blocks", "compress_4d_rope_boundary_p0", "nct_performance_p0"])
def test_inputs_come_from_name_and_seed(name: str) -> None:
    first, again = tensors(make_inputs(CONFIG[name])), tensors(make_inputs(CONFIG[name]))
    assert first.keys() == again.keys()
    assert all(same_bits(first[key], again[key]) for key in first)
    for other in (make_inputs(CONFIG[name], seed=1), make_inputs(replace(CONFIG[name], name="another"))):
        assert not same_bits(first["key"], other["key"])
        assert not same_bits(first["key_cache"], other["key_cache"])


@pytest.mark.parametrize("name", ["norm_one_token", "nhsd_int8", "pa_nz_float32", "compress_4d_alibi_function_p0"])
def test_caches_are_full_of_random_bits(name: str) -> None:
    cache = make_inputs(CONFIG[name])["key_cache"]
    assert len(cache.flatten().view(torch.uint8).unique()) == 256


@pytest.mark.parametrize("name", ["norm_full", "norm_float16", "norm_float32", "omni_function_p0"])
def test_copied_sources_hold_special_values(name: str) -> None:
    key = make_inputs(CONFIG[name])["key"]
    assert key.isnan().any()
    assert len(bits(key)[key.isnan()].unique()) == 3
    assert {float("inf"), -float("inf")} <= set(key.flatten().tolist())
    assert ((key == 0) & key.signbit()).any()


@pytest.mark.parametrize("config", [config for config in SMALL if config.averages], ids=lambda config: config.name)
def test_averaged_sources_are_finite(config: Config) -> None:
    key = make_inputs(config)["key"]
    assert key.double().isfinite().all()


@pytest.mark.parametrize("name", ["norm_padding", "pa_nz_padding", "alibi_boundary_p0", "compress_4d_rope_boundary_p0"])
def test_padding_stands_first_in_the_middle_and_last(name: str) -> None:
    slots = make_inputs(CONFIG[name])["slot_mapping"].flatten()
    assert (slots < 0).nonzero().flatten().tolist() == [0, len(slots) // 2, len(slots) - 1]


def test_layouts() -> None:
    interleaved = make_inputs(CONFIG["norm_interleaved"])
    key, value = interleaved["key_cache"], interleaved["value_cache"]
    assert key.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()
    assert (key.stride(0), value.storage_offset()) == (2 * key[0].numel(), key[0].numel())
    packed = make_inputs(CONFIG["norm_packed"])["value_cache"]
    assert (packed.shape[-1], packed.stride(2), packed.storage_offset()) == (32, 96, 64)
    padded = make_inputs(CONFIG["norm_padded_blocks"])["key_cache"]
    assert padded.stride(0) > padded[0].numel()
    assert make_inputs(CONFIG["norm_fused_qkv"])["value"].stride() == (384, 64, 1)
    assert make_inputs(CONFIG["norm_transposed"])["key"].stride() == (64, 21 * 64, 1)


def test_nct_buffers_end_with_the_last_token() -> None:
    inputs = make_inputs(CONFIG["nct_function_p0"])
    assert inputs["key"].untyped_storage().nbytes() == 2 * (179 * 150 + 5 + 128)
    fused = make_inputs(CONFIG["nct_performance_p0"])
    assert fused["key"].data_ptr() == fused["value"].data_ptr()


@pytest.mark.parametrize(
    ("name", "rows"), [("rope_function_p0", (32, 40, 0, 0, 16, 14)), ("omni_function_p0", (31, 40, 0, 0, 15, 13))]
)
def test_rows_written(name: str, rows: tuple[int, ...]) -> None:
    assert CONFIG[name].rows_written() == rows


def test_aligned_tasks_begin_blocks() -> None:
    config = CONFIG["alibi_performance_p0"]
    slots = make_inputs(config)["slot_mapping"]
    assert (slots % config.block_size == 0).all()
