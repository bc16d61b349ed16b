"""The named configs: run them as a script (``--list``, ``--run_mode sim``, names ...) or as tests."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import _checkout  # noqa: F401
import pytest

from scatter_pa_kv_cache import runner
from scatter_pa_kv_cache.config import Config
from scatter_pa_kv_cache.configs import CONFIGS
from scatter_pa_kv_cache.configs_fused import FusedConfig


def parameters(configs: Sequence[Config | FusedConfig], *, slow: bool) -> list[object]:
    """The configs as test parameters; those marked slow where ``slow`` says that they are."""
    return [
        pytest.param(config, id=config.name, marks=[pytest.mark.slow] if slow and config.slow else [])
        for config in configs
    ]


@pytest.mark.parametrize("config", parameters(CONFIGS, slow=True))
def test_sim(config: Config) -> None:
    judge(runner.run_config(config, "sim"))


@pytest.mark.npu
@pytest.mark.parametrize("config", parameters(runner.ALL_CONFIGS, slow=False))
def test_npu(config: Config | FusedConfig) -> None:
    from scatter_pa_kv_cache.runtime import npu_available

    if not npu_available():
        pytest.skip("there is no NPU that torch can use")
    judge(runner.run_config(config, "npu", device=runner.choose_device("npu")))


def judge(outcome: runner.Outcome) -> None:
    if outcome.marker == runner.SKIP:
        pytest.skip(outcome.details)
    assert outcome.marker == runner.PASS, outcome.details


if __name__ == "__main__":
    sys.exit(runner.main())
