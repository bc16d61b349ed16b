"""The operator's public system test for PA_NZ, as data, in sim: with fewer blocks, its slots shuffled."""

import json
from pathlib import Path

import _checkout  # noqa: F401
import pytest
import torch
from sim_cases import noise, twin

from scatter_pa_kv_cache import scatter_pa_kv_cache
from scatter_pa_kv_cache.golden.slots import bits
from scatter_pa_kv_cache.reference import run_golden

CASES = json.loads((Path(__file__).parent / "cases" / "panz_cases.json").read_text())["cases"]
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int8}
SLOW_ROWS = 20_000  # cache rows of key and value that a default run writes at most


def rows(case: dict) -> int:
    return case["tokens"] * (case["key_cache"][1] + case["value_cache"][1])


def parameters() -> list:
    return [
        pytest.param(case, id=str(case["id"]), marks=pytest.mark.slow if rows(case) > SLOW_ROWS else ())
        for case in CASES
    ]


@pytest.mark.parametrize("case", parameters())
def test_case(case: dict) -> None:
    assert case["expect"] == "ok"
    random = torch.Generator().manual_seed(case["id"])
    dtype, tokens, block_size = DTYPES[case["dtype"]], case["tokens"], case["block_size"]
    blocks = min(case["blocks"], -(-tokens // block_size) + 1)
    call = {name: noise(tuple(case[name]), dtype, random) for name in ("key", "value")}
    for name in ("key_cache", "value_cache"):
        call[name] = noise((blocks, *case[name][1:]), dtype, random)
    slots = torch.randperm(tokens, generator=random)
    call["slot_mapping"] = slots.to(getattr(torch, case["slot_dtype"]))
    call["cache_mode"] = case["cache_mode"]
    want = twin(call)
    run_golden(want)
    scatter_pa_kv_cache(**call)
    for name in ("key_cache", "value_cache"):
        assert torch.equal(bits(call[name]), bits(want[name]))
