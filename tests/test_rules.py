"""Every rule of section 6 of the operator's specification, each with the input that its table gives to break it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import _checkout  # noqa: F401
import pytest
import torch
from rule_cases import (
    BHALF,
    HALF,
    SINGLE,
    WIDE,
    Case,
    alibi,
    counted,
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
    nz5,
    nz_int8_value,
    refused,
    rope,
    siso,
)

from scatter_pa_kv_cache.arguments import CallSpec, TensorSpec
from scatter_pa_kv_cache.data_rules import DATA_RULES
from scatter_pa_kv_cache.errors import TilingError
from scatter_pa_kv_cache.rules import RULES, choose


class Refusal(NamedTuple):
    rule: str
    case: Callable[[], Case]
    name: str  # what the message must name


REFUSALS = (
    Refusal("A1", lambda: norm() | {"key": None}, "key"),
    Refusal("A2", lambda: norm() | {"key_cache": None}, "key_cache"),
    Refusal("A3", lambda: norm() | {"slot_mapping": None}, "slot_mapping"),
    Refusal("A4", lambda: norm() | {"value": None}, "value"),
    Refusal("A5", lambda: norm() | {"value_cache": None}, "value_cache"),
    Refusal("C1", lambda: norm() | {"key": counted(3, 8)}, "key"),
    Refusal("C2", lambda: norm() | {"value": counted(3, 12)}, "value"),
    Refusal("D1", lambda: norm(SINGLE) | {"soc": "A2"}, "key is float32"),
    Refusal("D2", lambda: norm() | {"key_cache": filled(2, 4, 2, 4, dtype=BHALF)}, "key_cache is bfloat16"),
    Refusal("D3", lambda: norm() | {"slot_mapping": ints(0, 5, -1, dtype=torch.int16)}, "slot_mapping is int16"),
    Refusal(
        "D4",
        lambda: (
            nz4()
            | {
                "value": counted(3, 2, 64, dtype=torch.uint8),
                "value_cache": filled(2, 4, 8, 32, dtype=torch.uint8),
                "soc": "A2",
            }
        ),
        "value is uint8",
    ),
    Refusal("D5", lambda: norm() | {"value_cache": filled(2, 4, 2, 6, dtype=BHALF)}, "value_cache is bfloat16"),
    Refusal(
        "D6",
        lambda: norm() | {"value": counted(3, 2, 6, dtype=BHALF), "value_cache": filled(2, 4, 2, 6, dtype=BHALF)},
        "value is bfloat16",
    ),
    Refusal("D7", lambda: rope() | {"compress_lens": ints(2, 2, 2, 1, dtype=WIDE)}, "compress_lens is int64"),
    Refusal("D7", lambda: norm() | {"compress_lens": ints(2, dtype=WIDE)}, "compress_lens is int64"),
    Refusal("D8", lambda: rope() | {"compress_seq_offset": ints(1, -1, 0, 3, dtype=WIDE)}, "compress_seq_offset"),
    Refusal("D9", lambda: rope() | {"seq_lens": ints(4, 3, dtype=WIDE)}, "seq_lens is int64"),
    Refusal("E1", lambda: norm() | {"cache_mode": "norm"}, 'cache_mode is "norm"'),
    Refusal("E2", lambda: norm() | {"scatter_mode": "ROPE"}, 'scatter_mode is "ROPE"'),
    Refusal("E3", lambda: nhsd() | {"soc": "950"}, "scatter_mode"),
    Refusal("E4", lambda: siso() | {"scatter_mode": "Rope"}, "value_cache"),
    Refusal("E4", lambda: siso() | {"cache_mode": "PA_NZ"}, "value_cache"),
    Refusal("E5", lambda: siso() | {"soc": "950"}, "value_cache"),
    Refusal("E5", lambda: four_d() | {"value": None, "value_cache": None, "scatter_mode": "None"}, "value_cache"),
    Refusal("E6", lambda: norm() | {"value": counted()}, "value has rank 0"),
    Refusal("E6", lambda: norm() | {"value_cache": filled()}, "value_cache rank 0"),
    Refusal("E7", lambda: norm() | {"value": counted(3, 2, 1, 6)}, "value has rank 4"),
    Refusal("E8", lambda: four_d(HALF) | {"soc": "A2"}, "key has rank 4"),
    Refusal("E9", lambda: four_d() | {"scatter_mode": "Nct"}, "key has rank 4"),
    Refusal("E9", lambda: four_d() | {"scatter_mode": "NHSD"}, "key has rank 4"),
    Refusal("E9", lambda: four_d() | {"cache_mode": "PA_NZ"}, "key has rank 4"),
    Refusal("E10", lambda: float4(nct(), "float4_e2m1"), "key is float4_e2m1"),
    Refusal("E10", lambda: float4(alibi(), "float4_e1m2"), "key is float4_e1m2"),
    Refusal("E10", lambda: float4(four_d(), "float4_e1m2"), "key is float4_e1m2"),
    Refusal("F1", lambda: norm() | {"value": counted(2, 2, 6)}, "value has shape [2, 2, 6]"),
    Refusal("F2", lambda: norm() | {"slot_mapping": ints([0], [5], [-1])}, "slot_mapping has shape [3, 1]"),
    Refusal("F3", lambda: norm() | {"slot_mapping": ints(0, 5)}, "slot_mapping has 2 slots"),
    Refusal("F3", lambda: norm() | {"slot_mapping": ints(0, 5, -1, 2)}, "slot_mapping has 4 slots"),
    Refusal("F3", lambda: nz4() | {"slot_mapping": ints(0, 5)}, "slot_mapping has 2 slots"),
    Refusal("F4", lambda: norm() | {"key_cache": filled(2, 4, 8)}, "key_cache has shape [2, 4, 8]"),
    Refusal("F4", lambda: nhsd() | {"value_cache": filled(2, 2, 96)}, "value_cache has shape [2, 2, 96]"),
    Refusal(
        "F5", lambda: norm() | {"key_cache": filled(1, 2, 2, 4), "value_cache": filled(1, 2, 2, 6)}, "key_cache holds 2"
    ),
    Refusal("F6", lambda: norm() | {"key_cache": filled(2, 4, 2, 5)}, "key_cache has shape [2, 4, 2, 5]"),
    Refusal("F6", lambda: norm() | {"value_cache": filled(2, 4, 2, 5)}, "value_cache has shape [2, 4, 2, 5]"),
    Refusal("F6", lambda: norm() | {"value_cache": filled(3, 4, 2, 6)}, "value_cache has shape [3, 4, 2, 6]"),
    Refusal(
        "F7",
        lambda: norm() | {"key_cache": filled(2, 4, 1, 4), "value_cache": filled(2, 4, 1, 6)},
        "key_cache has shape",
    ),
    Refusal(
        "F9",
        lambda: alibi() | {"value": counted(5, 2, 64), "value_cache": filled(2, 4, 1, 64), "soc": "A2"},
        "value has head size 64",
    ),
    Refusal("J1", lambda: nct() | {"strides": (8,)}, "strides is (8,)"),
    Refusal("J1", lambda: nct() | {"strides": None}, "strides is None"),
    Refusal("J1", lambda: nct() | {"offsets": ()}, "offsets is ()"),
    Refusal("J2", lambda: nct() | {"strides": (0, 12)}, "strides is (0, 12)"),
    Refusal("J3", lambda: nct() | {"offsets": (-1, 0)}, "offsets is (-1, 0)"),
    Refusal("J4", lambda: nct() | {"strides": (9, 12)}, "key's buffer has 24 elements"),
    Refusal("J4", lambda: nct() | {"offsets": (0, 1)}, "value's buffer has 36 elements"),
    Refusal("N1", lambda: nz4() | {"value_cache": nz5()["value_cache"]}, "value_cache [2, 2, 4, 8, 16]"),
    Refusal("N2", lambda: nz4_on_meta(65535), "key_cache has blocks of 65535"),
    Refusal(
        "N3",
        lambda: nz4() | {"key_cache": filled(1, 4, 2, 16), "value_cache": filled(1, 8, 2, 16)},
        "key_cache holds 2",
    ),
    Refusal("N4", lambda: nz4() | {"value_cache": filled(2, 8, 4, 16)}, "value_cache has shape [2, 8, 4, 16]"),
    Refusal("N5", lambda: nz4() | {"key_cache": filled(2, 2, 8, 32)}, "key_cache has shape [2, 2, 8, 32]"),
    Refusal("N6", lambda: nz4() | {"value_cache": filled(2, 4, 8, 32)}, "value_cache has shape [2, 4, 8, 32]"),
    Refusal("N7", lambda: nz4() | {"key": counted(3, 2, 24), "key_cache": filled(2, 3, 8, 16)}, "key has head size 24"),
    Refusal("N8", lambda: nz4() | {"key_cache": filled(2, 2, 8, 16)}, "key_cache has shape [2, 2, 8, 16]"),
    Refusal("N9", lambda: nz5() | {"key_cache": filled(2, 2, 1, 8, 16)}, "key_cache has shape [2, 2, 1, 8, 16]"),
    Refusal("N10", lambda: nz_int8_value(soc="A2"), "value is int8"),
    Refusal("H1", lambda: nhsd() | {"key_cache": filled(2, 3, 2, 16)}, "key_cache has shape [2, 3, 2, 16]"),
    Refusal("H2", lambda: nhsd() | {"value_cache": filled(2, 2, 4, 32)}, "value_cache has shape [2, 2, 4, 32]"),
    Refusal("H3", lambda: nhsd() | {"key": counted(2, 2, 8), "key_cache": filled(2, 2, 3, 8)}, "key has head size 8"),
    Refusal("H4", lambda: nhsd_on_meta(4095, 16, 16), "key has 4095 heads"),
    Refusal("H5", lambda: nhsd_on_meta(2, 16, 32, block_size=2**28), "key_cache has 4294967296 elements"),
    Refusal("H6", lambda: nhsd_on_meta(1024, 48, 48), "key and value have 196608 bytes"),
    Refusal("K1", lambda: alibi() | {"seq_lens": None}, "seq_lens is None"),
    Refusal("K1", lambda: rope() | {"compress_lens": None}, "compress_lens is None"),
    Refusal("K2", lambda: rope() | {"compress_seq_offset": None}, "compress_seq_offset is None"),
    Refusal("K3", lambda: alibi() | {"compress_lens": ints([2, 1], [1, 2])}, "compress_lens has shape [2, 2]"),
    Refusal("K3", lambda: alibi() | {"seq_lens": ints([3, 2])}, "seq_lens has shape [1, 2]"),
    Refusal("K4", lambda: rope() | {"compress_seq_offset": ints([1, -1], [0, 3])}, "compress_seq_offset has shape"),
    Refusal(
        "K5", lambda: alibi() | {"key_cache": filled(2, 4, 2, 32), "value_cache": filled(2, 4, 2, 32)}, "key_cache"
    ),
    Refusal("K6", lambda: alibi() | {"slot_mapping": ints(0, 3, 4, 6, 7)}, "slot_mapping has 5 entries"),
    Refusal("K6", lambda: alibi() | {"compress_lens": ints(2, 1, 1)}, "compress_lens has 3 entries"),
    Refusal("K6", lambda: rope() | {"compress_seq_offset": ints(1)}, "compress_seq_offset has 1 entries"),
    Refusal("K7", lambda: rope(torch.int8) | {"soc": "A2"}, "key is int8"),
    Refusal("G1", lambda: four_d() | {"seq_lens": None}, "seq_lens is None"),
    Refusal("G1", lambda: four_d() | {"scatter_mode": "None", "compress_lens": None}, "compress_lens is None"),
    Refusal(
        "G2", lambda: four_d() | {"scatter_mode": "Omni", "compress_seq_offset": None}, "compress_seq_offset is None"
    ),
    Refusal("G3", lambda: four_d() | {"value": counted(2, 3, 2, 6, dtype=SINGLE)}, "value has shape [2, 3, 2, 6]"),
    Refusal("G4", lambda: four_d() | {"slot_mapping": ints(0, 3, 7, 9)}, "slot_mapping has shape [4]"),
    Refusal("G5", lambda: four_d() | {"compress_lens": ints(2, 1, 2, 1)}, "compress_lens has shape [4]"),
    Refusal("G5", lambda: four_d_alibi() | {"compress_lens": ints(2, 1, 2)}, "compress_lens has shape [3]"),
    Refusal("G6", lambda: four_d() | {"seq_lens": ints(4, 3, 0)}, "seq_lens has shape [3]"),
    Refusal("G7", lambda: four_d() | {"compress_seq_offset": ints([1, 0], [0, 1])}, "compress_seq_offset has shape"),
    Refusal("G8", lambda: four_d() | {"key_cache": filled(3, 4, 2, 8, dtype=SINGLE)}, "key_cache has shape"),
    Refusal("G9", lambda: four_d() | {"value_cache": filled(3, 4, 1, 5, dtype=SINGLE)}, "value_cache has shape"),
    Refusal("G9", lambda: four_d() | {"value_cache": filled(3, 3, 1, 6, dtype=SINGLE)}, "value_cache has shape"),
    Refusal("V1", lambda: norm() | {"slot_mapping": ints(0, 8, -1)}, "slot_mapping[1] is 8"),
    Refusal("V1", lambda: nz5() | {"slot_mapping": ints(0, 1, 16)}, "slot_mapping[2] is 16"),
    Refusal("V1", lambda: nhsd() | {"slot_mapping": ints(6, 0)}, "slot_mapping[0] is 6"),
    Refusal("V2", lambda: norm() | {"slot_mapping": ints(0, 5, 5)}, "slot_mapping[1] and slot_mapping[2] are both 5"),
    Refusal("V3", lambda: alibi() | {"seq_lens": ints(3, 1)}, "seq_lens has the sum 4"),
    Refusal("V4", lambda: alibi() | {"seq_lens": ints(6, -1)}, "seq_lens[1] is -1"),
    Refusal("V4", lambda: four_d() | {"seq_lens": ints(5, 3)}, "seq_lens[0] is 5"),
    Refusal("V5", lambda: alibi() | {"compress_lens": ints(4, 1, 1, 2)}, "compress_lens has 4 for batch 0, head 0"),
    Refusal("V5", lambda: four_d_alibi() | {"compress_lens": ints(2, 1, -1, 2)}, "compress_lens has -1 for batch 1"),
    Refusal("V5", lambda: rope() | {"compress_lens": ints(2, 2, 2, 4)}, "compress_lens has 4 for batch 1, head 1"),
    Refusal("V5", lambda: rope() | {"compress_lens": ints(2, 2, -1, 1)}, "compress_lens has -1 for batch 1, head 0"),
    Refusal("V6", lambda: rope() | {"compress_seq_offset": ints(3, -1, 0, 3)}, "compress_seq_offset has 3"),
    Refusal("V6", lambda: rope() | {"compress_seq_offset": ints(1, -2, 0, 3)}, "compress_seq_offset has -2"),
    Refusal(
        "V7",
        lambda: alibi() | {"slot_mapping": ints(0, 3, 4, 7), "compress_lens": ints(2, 1, 1, 2)},
        "slot_mapping has 7 for batch 1, head 1",
    ),
    Refusal(
        "V7", lambda: alibi() | {"slot_mapping": ints(2**62, 3, 4, 6, dtype=WIDE)} | wide_lengths(), "slot_mapping has"
    ),
    Refusal("V8", lambda: alibi() | {"slot_mapping": ints(0, 1, 4, 6)}, "slot_mapping sends batch 0, head 0"),
    Refusal("V8", lambda: rope() | {"slot_mapping": ints(0, 2, 7, 9)}, "slot_mapping sends batch 0, head 0"),
)


def wide_lengths() -> Case:
    return {"compress_lens": ints(2, 1, 1, 2, dtype=WIDE), "seq_lens": ints(3, 2, dtype=WIDE)}


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.rule)
def test_refused(refusal: Refusal) -> None:
    refused(refusal.case(), refusal.rule, refusal.name)


def test_every_rule_has_its_refusal() -> None:
    tested = {refusal.rule for refusal in REFUSALS} | {"F8"}
    assert tested == {rule.id for rule in RULES} | {rule.id for rule in DATA_RULES}
    assert len({rule.id for rule in RULES}) == len(RULES) == 71


def test_odd_float4_head_is_f8() -> None:
    """Packed storage cannot have an odd head, so the spec is made by hand."""
    key, cache = TensorSpec((3, 2, 3), "float4_e2m1"), TensorSpec((2, 4, 2, 3), "float4_e2m1")
    spec = CallSpec(key, cache, TensorSpec((3,), "int32"), key, cache)
    with pytest.raises(TilingError, match="key is float4_e2m1 with head size 3") as caught:
        choose(spec)
    assert caught.value.rule == "F8"
