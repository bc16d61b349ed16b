"""The cases of the operator's public host unit test, through specs alone (no tensor is allocated).

None of them disagrees with the operator's specification; the rule that refuses each is pinned beside its verdict.
"""

from __future__ import annotations

import json
import re
from math import prod
from pathlib import Path
from typing import Any

import _checkout  # noqa: F401
import pytest

from scatter_pa_kv_cache.arguments import CallSpec, TensorSpec
from scatter_pa_kv_cache.errors import ScatterPaKvCacheError
from scatter_pa_kv_cache.rules import choose

CASES = json.loads((Path(__file__).parent / "cases" / "tiling_ut_cases.json").read_text())
DTYPES = {"FLOAT16": "float16", "FLOAT": "float32", "COMPLEX64": "complex64", "INT32": "int32"}
RULES = {
    "slot_mapping_wrong_dim": "F2",
    "dtype_mismatch": "D2",
    "unsupported_dtype": "D1",
    "value_wrong_dim": "C2",
    "key_value_dim1_mismatch": "F1",
    "key_value_cache_dim0_mismatch": "F6",
    "key_value_cache_dim2_mismatch": "F6",
    "nz_key_cache_3d": "N1",
    "nz_k_head_size_not_aligned": "N5",
    "key_value_dim_num_mismatch": "E7",
    "norm_vhead_size_mismatch": "F6",
    "nhsd_numblocks_too_small": "F5",
    "nhsd_numhead_mismatch": "H1",
    "nhsd_kc_vc_dim2_mismatch": "H2",
    "nhsd_kv_dim1_mismatch": "F1",
    "compress_kc_dim2_not_1": "K5",
    "compress_lens_2d": "K3",
    "seq_lens_2d": "K3",
    "siso_numblocks_too_small": "F5",
    "nz_kv_dim0_mismatch_dual": "F1",
    "nz_kv_dim1_mismatch": "F1",
    "nz_kc_vc_dim1_mismatch": "N8",
    "nct_offsets_size_lt_2": "J1",
    "siso_nct_strides_size_lt_2": "J1",
    "nct_khead_kc_dim3_mismatch": "F6",
    "nct_numblocks_too_small": "F5",
    "nct_numhead_mismatch": "F7",
    "nct_kv_dim0_mismatch": "F1",
    "nct_kv_dim1_mismatch": "F1",
    "nct_kc_vc_dim0_mismatch": "F6",
}


def spec_of(case: dict[str, Any], soc: str | None) -> CallSpec:
    """The spec of a case; a case without value is key-only."""
    tensors = {
        name: TensorSpec(tuple(given["shape"]), DTYPES[given["dtype"]], prod(given["shape"]))
        for name, given in case["inputs"].items()
    }
    placeholder = TensorSpec((), tensors["key"].dtype)
    attributes = {
        name: tuple(map(int, re.findall(r"-?\d+", given))) if name in ("strides", "offsets") else given
        for name, given in case["attrs"].items()
    }
    return CallSpec(**{"value": placeholder, "value_cache": placeholder} | tensors | attributes, soc=soc)


@pytest.mark.parametrize("soc", [None, "A2", "A3"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_verdict(case: dict[str, Any], soc: str | None) -> None:
    if case["expect"] == "ok":
        assert choose(spec_of(case, soc)) is not None
        return
    with pytest.raises(ScatterPaKvCacheError) as caught:
        choose(spec_of(case, soc))
    assert caught.value.rule == RULES[case["case"].removeprefix("tiling_error_")], str(caught.value)
