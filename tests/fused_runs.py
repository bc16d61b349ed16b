"""Runs of the fused configs for the tests of each pattern."""

import pytest

from scatter_pa_kv_cache.configs_fused import FUSED_CONFIGS, FusedConfig
from scatter_pa_kv_cache.fused import FusedResult, run


def configs(pattern: str) -> list[object]:
    """The configs of a pattern as test parameters."""
    return [
        pytest.param(config, id=config.name, marks=[pytest.mark.slow] if config.slow else [])
        for config in FUSED_CONFIGS
        if config.pattern == pattern
    ]


def named(name: str) -> FusedConfig:
    (config,) = (config for config in FUSED_CONFIGS if config.name == name)
    return config


def run_and_show(config: FusedConfig) -> FusedResult:
    """Run a config in sim, every pass of every launch, and print how close each output came."""
    result = run(config)
    print(f"\n{config.name}: {'; '.join(map(str, result.closeness))}")
    return result
