"""What the rules accept, which scenario a call has, and which rule speaks first."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any

import _checkout  # noqa: F401
import pytest
import torch
from rule_cases import (
    BASES,
    BHALF,
    HALF,
    SINGLE,
    WIDE,
    Case,
    alibi,
    bits,
    counted,
    decide,
    filled,
    float4,
    four_d,
    four_d_alibi,
    ints,
    nct,
    nhsd,
    nhsd_on_meta,
    norm,
    nz4,
    nz4_on_meta,
    nz_int8_value,
    refused,
    rope,
    siso,
)

from scatter_pa_kv_cache.arguments import CallSpec, TensorSpec, normalise
from scatter_pa_kv_cache.dtypes import DTYPES, FLOAT4
from scatter_pa_kv_cache.errors import ScatterPaKvCacheError, TilingError
from scatter_pa_kv_cache.rules import choose
from scatter_pa_kv_cache.scenarios import PRODUCTS, SCENARIOS

MODULES = ("norm", "nct", "key_only", "pa_nz", "pa_nz", "alibi", "rope", "compress_4d", "compress_4d", "nhsd")
NUMBERS = (2, 2, 6, 1, 1, 4, 5, 3, 3, 7)


@pytest.mark.parametrize("wide", [False, True], ids=("int32", "int64"))
@pytest.mark.parametrize(("base", "number", "module"), [*zip(BASES, NUMBERS, MODULES, strict=True)])
def test_base_is_accepted(base: Callable[[], Case], number: int, module: str, wide: bool) -> None:
    case = base()
    if wide:
        case |= {
            name: given.to(WIDE)
            for name, given in case.items()
            if name in ("slot_mapping", "compress_lens", "compress_seq_offset", "seq_lens") and given is not None
        }
    before = bits(case)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choice = decide(case)
    assert choice is not None
    assert (choice.scenario.number, choice.module) == (number, module)
    assert all(map(torch.equal, before, bits(case)))


@pytest.mark.parametrize(
    ("case", "mode"),
    [
        (norm() | {"cache_mode": None, "scatter_mode": ""}, "None"),
        (norm() | {"cache_mode": "", "scatter_mode": None, "strides": None, "offsets": None}, "None"),
        (nz4() | {"scatter_mode": "Alibi"}, "None"),
        (nz4() | {"scatter_mode": "anything"}, "None"),
        (norm() | {"value": None, "value_cache": None, "scatter_mode": "Nct", "strides": [8, 1]}, "Nct"),
        (siso() | {"value": torch.zeros(()), "value_cache": torch.zeros(())}, "None"),
        (siso() | {"scatter_mode": "Nct", "strides": (8, 10**6), "offsets": (0, 10**6)}, "Nct"),
        (alibi() | {"compress_seq_offset": ints([9])}, "Alibi"),
        (rope() | {"scatter_mode": "Omni"}, "Omni"),
        (four_d() | {"scatter_mode": "Omni"}, "Omni"),
        (four_d() | {"scatter_mode": "None"}, "Rope"),
        (four_d_alibi() | {"scatter_mode": "None"}, "Alibi"),
        (four_d_alibi() | {"compress_lens": ints(2, 1, 3, 2)}, "Alibi"),
        (four_d_alibi() | {"compress_seq_offset": ints([[9]])}, "Alibi"),
        (norm() | {"compress_lens": ints([[1]]), "seq_lens": ints(1), "compress_seq_offset": ints(1)}, "None"),
        (alibi() | {"value": counted(5, 2, 6), "value_cache": filled(2, 4, 1, 6)}, "Alibi"),
        (nz_int8_value(), "None"),
        (nz_int8_value(soc="950"), "None"),
        (float4(norm(), "float4_e2m1"), "None"),
        (nz4_on_meta(65534), "None"),
        (nhsd_on_meta(2, 16, 16, block_size=2**28 - 1), "NHSD"),
        (nhsd_on_meta(1020, 48, 48), "NHSD"),
    ],
)
def test_accepted_variant(case: Case, mode: str) -> None:
    choice = decide(case)
    assert choice is not None
    assert choice.scatter_mode == mode


def test_wide_float4_call() -> None:
    """A 4-bit PA_NZ row is 64 elements, 32 stored bytes."""
    case: Case = {
        "key": counted(3, 2, 32, dtype=torch.uint8),
        "key_cache": filled(2, 2, 8, 32, dtype=torch.uint8),
        "slot_mapping": ints(0, 5, -1),
        "value": counted(3, 2, 64, dtype=torch.uint8),
        "value_cache": filled(2, 4, 8, 32, dtype=torch.uint8),
        "cache_mode": "PA_NZ",
        "key_dtype": "float4_e2m1",
        "value_dtype": "float4_e1m2",
    }
    spec = normalise(**case).spec
    assert spec.key is not None
    assert spec.key.shape == (3, 2, 64)
    assert decide(case) is not None


@pytest.mark.parametrize(
    "case",
    [
        {"key": counted(0, 2, 4), "value": counted(0, 2, 6)},
        {"key": counted(0, 2, 4), "value": counted(0, 2, 6), "slot_mapping": ints()},
        {"key": counted(0, 2, 4), "value": None, "value_cache": None},
        {"key": counted(0, 2, 4), "value": counted(), "value_cache": filled()},
        {"key_cache": filled(0, 4, 2, 4), "value_cache": filled(0, 4, 2, 6)},
        {"key": counted(0), "value": counted(0, dtype=WIDE), "cache_mode": "norm", "scatter_mode": "ROPE", "soc": "A2"},
    ],
)
def test_empty_is_success_before_any_other_rule(case: Case) -> None:
    case = norm() | case
    before = bits(case)
    assert decide(case) is None
    assert all(map(torch.equal, before, bits(case)))


def test_one_empty_side_is_no_short_circuit() -> None:
    refused(norm() | {"key": counted(0, 2, 4)}, "F1", "value")
    refused(norm() | {"value": counted(0, 2, 6)}, "F1", "value")
    refused(norm() | {"key_cache": filled(0, 4, 2, 4)}, "F5", "key_cache")


@pytest.mark.parametrize(
    ("rule", "case"),
    [
        ("A1", norm() | {"key": None, "value": counted(0), "value_cache": filled(0)}),
        ("A4", norm() | {"value": None, "key": counted(0)}),
        ("C1", norm(torch.float64) | {"key": counted(3, 8), "cache_mode": "norm"}),
        ("D1", four_d() | {"soc": "A2"}),
        ("D1", nhsd() | {"key": counted(2, 2, 16, dtype=SINGLE), "soc": None}),
        ("D3", norm() | {"slot_mapping": ints(0, dtype=torch.int16), "value": counted(3, 2, 6, dtype=WIDE)}),
        ("D6", norm() | {"value": counted(3, 2, 6, dtype=SINGLE), "value_cache": filled(1, dtype=SINGLE)}),
        ("E1", norm() | {"cache_mode": "norm", "scatter_mode": "ROPE"}),
        ("E2", norm() | {"scatter_mode": "ROPE", "slot_mapping": ints(0)}),
        ("E4", siso() | {"scatter_mode": "NHSD"}),
        ("E8", four_d(HALF) | {"scatter_mode": "Nct", "soc": "A3"}),
        ("F1", alibi() | {"value": counted(4, 2, 32), "seq_lens": None}),
        ("F2", nz4() | {"slot_mapping": ints([0]), "key_cache": filled(1)}),
        ("F5", alibi() | {"key_cache": filled(1, 4, 1, 32)}),
        ("N5", nz4() | {"key": counted(3, 2, 24), "key_cache": filled(2, 2, 8, 24)}),
        ("V5", rope() | {"compress_lens": ints(9, 9, 9, 9), "slot_mapping": ints(0, 0, 0, 0)}),
    ],
)
def test_first_broken_rule_decides(rule: str, case: Case) -> None:
    refused(case, rule, "")


@pytest.mark.parametrize("soc", [None, *PRODUCTS])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("row", "mode"), [(row, mode) for row in SCENARIOS for mode in row.scatter_modes])
def test_dtypes_are_those_of_the_scenario_table(row: Any, mode: str, dtype: str, soc: str | None) -> None:
    """Each scenario takes the dtypes of its row for each of its products, and for no product named their union."""
    width = 64
    chunk = 256 // DTYPES[dtype].bits
    key: tuple[int, ...] = (2, 1, width)
    slots: tuple[int, ...] = (2,)
    extra: dict[str, Any] = {}
    cache: tuple[int, ...] = {1: (2, width // chunk, 4, chunk), 7: (2, 1, 4, width)}.get(row.number, (2, 4, 1, width))
    if row.number == 3:
        key, slots = (2, 3, 1, width), (2, 1)
    if row.number in (3, 4, 5):
        extra = {"compress_lens": TensorSpec(slots, "int32"), "seq_lens": TensorSpec((2,), "int32")}
        if mode != "Alibi":
            extra["compress_seq_offset"] = TensorSpec((2,), "int32")
    key_sides = TensorSpec(key, dtype, 128), TensorSpec(cache, dtype)
    value_sides = (TensorSpec((), dtype),) * 2 if row.number == 6 else key_sides
    spec = CallSpec(
        *key_sides,
        TensorSpec(slots, "int32"),
        *value_sides,
        **extra,
        cache_mode=row.cache_mode,
        scatter_mode=mode,
        strides=(width, width),
        soc=soc,
    )
    offered = any(dtype in row.dtypes[product] for product in ((soc,) if soc else row.products))
    if offered and not (mode == "Nct" and dtype in FLOAT4):
        choice = choose(spec)
        assert choice is not None
        assert (choice.scenario.number, choice.scatter_mode) == (row.number, mode)
    else:
        with pytest.raises(ScatterPaKvCacheError):
            choose(spec)


def test_products_decide_only_when_named() -> None:
    assert decide(alibi() | {"value": counted(5, 2, 64), "value_cache": filled(2, 4, 1, 64), "soc": "950"}) is not None
    assert decide(rope(torch.int8)) is not None
    assert decide(rope(torch.int8) | {"soc": "950"}) is not None
    assert decide(rope(BHALF) | {"soc": "A3"}) is not None
    assert decide(four_d() | {"soc": "950"}) is not None
    assert decide(nhsd() | {"soc": "A3"}) is not None
    assert decide(siso() | {"soc": "A3"}) is not None
    narrow = {"value": counted(5, 2, 6), "value_cache": filled(2, 4, 1, 6)}
    refused(alibi(torch.int8) | {"key": counted(5, 2, 16), "soc": "A2"}, "D2", "key_cache")
    refused(
        alibi() | {"key": counted(5, 2, 6), "key_cache": filled(2, 4, 1, 6)} | narrow | {"soc": "A2"},
        "F9",
        "key",
    )


def test_messages_list_what_is_possible() -> None:
    error = refused(four_d() | {"scatter_mode": "rope"}, "E2", "scatter_mode")
    assert 'with a 4-D key "Rope", "Omni" or "Alibi"' in str(error)
    error = refused(norm() | {"scatter_mode": "rope", "soc": "950"}, "E2", "scatter_mode")
    assert "on 950" in str(error)
    assert '"NHSD"' not in str(error).split("on 950")[1]
    assert "[E2]" in str(error)
    error = refused(norm(SINGLE) | {"soc": "A2"}, "D1", "key")
    assert "float16, bfloat16 or int8" in str(error)


def test_nct_reaches_past_the_shape() -> None:
    """Tokens of a fused buffer: J4 counts from the tensor's first element to the end of its storage."""
    fused = counted(3, 40)
    key = fused[:, 2:10].as_strided((3, 2, 4), (8, 4, 1))
    case = nct() | {"key": key, "value": fused.as_strided((3, 2, 6), (12, 6, 1), 10), "strides": (40, 40)}
    choice = decide(case)
    assert choice is not None
    assert choice.module == "nct"
    assert decide(case | {"offsets": (30, 18)}) is not None
    refused(case | {"offsets": (31, 18)}, "J4", "key")
    refused(case | {"offsets": (30, 19)}, "J4", "value")


NAMED = (
    "it must be None or one of float16, bfloat16, float32, int8, uint8, int16, uint16, int32, uint32, float8_e4m3fn, "
    "float8_e5m2, hifloat8, float4_e2m1, float4_e1m2"
)


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ({"key": [1, 2]}, "key is of type list; it must be a torch.Tensor"),
        ({"seq_lens": 3}, "seq_lens is of type int; it must be a torch.Tensor"),
        (
            {"value_cache": torch.empty(2, 4, 2, 6, device="meta")},
            "value_cache is on meta; it must be on key's device, cpu",
        ),
        ({"soc": "910B"}, "soc is '910B'; it must be None or one of 'A2', 'A3', '950'"),
        ({"soc": ["A2"]}, "soc is ['A2']; it must be None or one of 'A2', 'A3', '950'"),
        ({"cache_mode": 1}, "cache_mode is of type int; it must be a string or None"),
        ({"scatter_mode": b"None"}, "scatter_mode is of type bytes; it must be a string or None"),
        ({"strides": 8}, "strides is 8; it must be a sequence of integers or None"),
        ({"offsets": (0.5, 0)}, "offsets is (0.5, 0); it must be a sequence of integers or None"),
        ({"key_dtype": "float17"}, f"key_dtype is 'float17'; {NAMED}"),
        ({"key_dtype": torch.float16}, f"key_dtype is torch.float16; {NAMED}"),
        (
            {"value_dtype": "hifloat8"},
            "value_dtype is 'hifloat8' but value is stored as float16; it must be stored as uint8",
        ),
    ],
)
def test_wrong_kind_of_argument(case: Case, sentence: str) -> None:
    assert str(refused(norm() | case, "argument", "")) == f"{sentence} [argument]"


def test_named_dtype_must_fit_the_cache_too() -> None:
    case = norm(torch.uint8) | {"key_dtype": "hifloat8", "value_dtype": "hifloat8"}
    assert decide(case) is not None
    refused(case | {"key_cache": filled(2, 4, 2, 4)}, "D2", "key_cache is float16")
    refused(case | {"value_cache": filled(2, 4, 2, 6)}, "D5", "value_cache is float16")
    refused(case | {"value_dtype": None}, "D6", "value is uint8")


def test_an_error_can_cross_processes() -> None:
    error = refused(norm() | {"slot_mapping": ints(0, 5)}, "F3", "slot_mapping")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.rule, copy.code) == (TilingError, str(error), "F3", 561002)
