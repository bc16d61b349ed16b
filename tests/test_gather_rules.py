"""The checks of GatherPaKvCache: which rule refuses what, by which error, and that nothing is written then."""

import _checkout  # noqa: F401
import pytest
import torch
from gather_calls import ints

from scatter_pa_kv_cache import (
    DataError,
    InvalidParameterError,
    NullPointerError,
    ScatterPaKvCacheError,
    TilingError,
    gather_pa_kv_cache,
)

HALF, WIDE, FLOAT8 = torch.float16, torch.int64, torch.float8_e4m3fn
CODES = {NullPointerError: 161001, InvalidParameterError: 161002, TilingError: 561002, DataError: 161002}


def ones(*shape, dtype=HALF):
    return torch.ones(shape).to(dtype)


def norm():
    """B 2, W 2, T 5, N 2, Dk 4, Dv 6, NB 3, BS 4."""
    return {
        "key_cache": ones(3, 4, 2, 4),
        "value_cache": ones(3, 4, 2, 6),
        "block_tables": ints([0, 1], [2, -1]),
        "seq_lens": ints(0, 3, 5),
        "key": ones(5, 2, 4),
        "value": ones(5, 2, 6),
    }


def pa_nz():
    """B 2, W 2, T 5, N 2, Dk 32, Dv 16, NB 3, BS 4."""
    return norm() | {
        "key_cache": ones(3, 4, 4, 16),
        "value_cache": ones(3, 2, 4, 16),
        "key": ones(5, 64),
        "value": ones(5, 32),
        "cache_mode": "PA_NZ",
    }


def half(name):
    return {name: norm()[name].float()}


REFUSED = [
    *(("R1", NullPointerError, norm, {name: None}, name) for name in norm()),
    ("R2", TilingError, norm, {"cache_mode": "NZ"}, "cache_mode"),
    ("R3", InvalidParameterError, norm, {"key_cache": ones(3, 4, 8)}, "key_cache"),
    ("R3", InvalidParameterError, norm, {"value_cache": ones(3, 1, 4, 2, 6)}, "value_cache"),
    ("R3", InvalidParameterError, norm, {"block_tables": ints(0, 1)}, "block_tables"),
    ("R3", InvalidParameterError, norm, {"seq_lens": ints([0, 3, 5])}, "seq_lens"),
    ("R3", InvalidParameterError, norm, {"key": ones(5, 8)}, "key"),
    ("R3", InvalidParameterError, norm, {"value": ones(5, 12)}, "value"),
    ("R3", InvalidParameterError, norm, {"seq_offset": ints([0, 0])}, "seq_offset"),
    ("R3", InvalidParameterError, pa_nz, {"key": ones(5, 2, 32)}, "key"),
    ("R4", InvalidParameterError, norm, {"block_tables": torch.zeros(2, 0, dtype=torch.int32)}, "block_tables"),
    ("R4", InvalidParameterError, norm, {"block_tables": torch.zeros(0, 2, dtype=torch.int32)}, "block_tables"),
    ("R4", InvalidParameterError, norm, {"seq_lens": ints()}, "seq_lens"),
    ("R5", InvalidParameterError, norm, {"key_cache": ones(3, 4, 2, 4, dtype=torch.float64)}, "key_cache"),
    ("R5", InvalidParameterError, norm, half("value_cache") | {"soc": "A2"}, "value_cache"),
    ("R6", InvalidParameterError, norm, half("key"), "key"),
    ("R6", InvalidParameterError, norm, half("value"), "value"),
    ("R7", InvalidParameterError, norm, half("value_cache") | half("value"), "value_cache"),
    (
        "R7",
        InvalidParameterError,
        norm,
        {"value_cache": ones(3, 4, 2, 6, dtype=FLOAT8), "value": ones(5, 2, 6, dtype=FLOAT8)},
        "value_cache",
    ),
    ("R8", InvalidParameterError, norm, {"block_tables": ints([0, 1], [2, -1]).short()}, "block_tables"),
    ("R8", InvalidParameterError, norm, {"seq_lens": ints(0, 3, 5, dtype=WIDE)}, "seq_lens"),
    ("R8", InvalidParameterError, norm, {"seq_offset": ints(0, 0, dtype=WIDE)}, "seq_offset"),
    ("R8", InvalidParameterError, norm, {"block_tables": ints([0], [1], dtype=WIDE), "soc": "A3"}, "block_tables"),
    ("R9", TilingError, norm, {"seq_lens": ints(3, 2)}, "seq_lens"),
    ("R9", TilingError, norm, {"is_seq_lens_cumsum": False}, "seq_lens"),
    ("R10", TilingError, norm, {"seq_offset": ints(0, 0, 0)}, "seq_offset"),
    ("R11", TilingError, norm, {"value": ones(4, 2, 6)}, "value"),
    ("R12", TilingError, norm, {"value_cache": ones(3, 5, 2, 6)}, "value_cache"),
    ("R12", TilingError, pa_nz, {"value_cache": ones(3, 2, 5, 16)}, "value_cache"),
    ("R13", TilingError, norm, {"value_cache": ones(3, 4, 3, 4)}, "value_cache"),
    ("R14", TilingError, pa_nz, {"key_cache": ones(3, 8, 4, 8)}, "key_cache"),
    ("R14", TilingError, pa_nz, {"value_cache": ones(3, 1, 4, 32)}, "value_cache"),
    ("R15", TilingError, norm, {"key": ones(5, 2, 5)}, "key"),
    ("R15", TilingError, norm, {"value": ones(5, 1, 12)}, "value"),
    ("R15", TilingError, pa_nz, {"key": ones(5, 48)}, "key"),
    ("R16", TilingError, norm, {"key_cache": ones(3, 4, 2, 37889), "key": ones(5, 2, 37889)}, "key"),
    ("R17", DataError, norm, {"seq_lens": ints(1, 3, 5)}, "seq_lens[0]"),
    ("R17", DataError, norm, {"seq_lens": ints(0, 3, 2)}, "seq_lens[2]"),
    ("R17", DataError, norm, {"seq_lens": ints(3, -1), "is_seq_lens_cumsum": False}, "seq_lens[1]"),
    ("R18", DataError, norm, {"seq_offset": ints(0, -4)}, "seq_offset[1]"),
    ("argument", InvalidParameterError, norm, {"key": [1]}, "key"),
    ("argument", InvalidParameterError, norm, {"value": torch.ones(5, 2, 6, device="meta")}, "value"),
    ("argument", InvalidParameterError, norm, {"soc": "910"}, "soc"),
    ("argument", InvalidParameterError, norm, {"cache_mode": 1}, "cache_mode"),
    ("argument", InvalidParameterError, norm, {"is_seq_lens_cumsum": 1}, "is_seq_lens_cumsum"),
    ("argument", InvalidParameterError, norm, {"run_mode": "gpu"}, "run_mode"),
    ("argument", InvalidParameterError, norm, {"run_mode": "npu"}, "run_mode"),
]


@pytest.mark.parametrize(
    ("rule", "kind", "base", "changes", "name"),
    REFUSED,
    ids=[f"{rule}-{number}" for number, (rule, *_) in enumerate(REFUSED)],
)
def test_refused(rule, kind, base, changes, name):
    call = base() | changes
    results = [call[side] for side in ("key", "value") if isinstance(call[side], torch.Tensor)]
    before = [result.clone() for result in results]
    with pytest.raises(ScatterPaKvCacheError) as caught:
        gather_pa_kv_cache(**call)
    assert (type(caught.value), caught.value.rule, caught.value.code) == (kind, rule, CODES[kind])
    assert str(caught.value).startswith(name)
    for result, old in zip(results, before, strict=True):
        assert result.device.type == "meta" or torch.equal(result, old)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cache_mode": None},
        {"cache_mode": ""},
        {"seq_lens": ints(3, 2), "is_seq_lens_cumsum": False},
        {"seq_offset": ints(4, 9)},
        {"soc": "A2"},
        {"soc": "950"},
        {"seq_lens": ints(0, 3, 2), "check_data": False},
    ],
    ids=str,
)
def test_accepted(changes):
    call = norm() | changes
    call["key"].zero_()
    gather_pa_kv_cache(**call)


def test_the_first_broken_rule_speaks():
    call = norm() | {"cache_mode": "NZ", "key": None}
    with pytest.raises(NullPointerError):
        gather_pa_kv_cache(**call)
