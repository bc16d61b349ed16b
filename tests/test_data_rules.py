"""Index data that the rules V accept; test_rules has what they refuse."""

from __future__ import annotations

import warnings

import _checkout  # noqa: F401
import pytest
import torch
from rule_cases import (
    Case,
    alibi,
    counted,
    decide,
    filled,
    four_d_alibi,
    ints,
    norm,
    refused,
    rope,
)

from scatter_pa_kv_cache.errors import ScatterPaKvCacheWarning


@pytest.mark.parametrize(
    "case",
    [
        norm() | {"slot_mapping": ints(-1, -1, -9)},
        alibi() | {"slot_mapping": ints(0, -1, 4, 6), "compress_lens": ints(2, 1, 0, 2)},
        alibi() | {"slot_mapping": ints(0, -1, 4, 6), "compress_lens": ints(2, 99, 1, 2)},
        alibi() | {"slot_mapping": ints(0, 0, 0, 6), "compress_lens": ints(0, 2, 0, 2)},
        rope() | {"compress_lens": ints(2, -5, 2, 1)},
        rope() | {"compress_lens": ints(2, 99, 2, 1)},
        rope() | {"slot_mapping": ints(0, 3, -1, 7), "compress_seq_offset": ints(1, -1, 99, 3)},
        rope()
        | {
            "key_cache": filled(4, 4, 1, 32),
            "value_cache": filled(4, 4, 1, 32),
            "slot_mapping": ints(0, 4, 8, 10),
            "compress_lens": ints(0, 2, 3, 1),
            "compress_seq_offset": ints(1, -1, 0, 2),
        },
        rope()
        | {
            "key": counted(3, 2, 32),
            "value": counted(3, 2, 32),
            "slot_mapping": ints(0, 1, 3, 4, 5, 6),
            "compress_lens": ints(2, 2, 0, 1, 1, 0),
            "compress_seq_offset": ints(0, 0, -1, 0, 0, -1),
            "seq_lens": ints(2, 0, 1),
        },
        rope() | {"scatter_mode": "Omni", "slot_mapping": ints(0, 2, 6, 7)},
    ],
)
def test_data_accepted(case: Case) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decide(case) is not None


def test_rope_rows_end_at_the_capacity() -> None:
    """The last task of the base writes 3 rows (offset = length: no compression): 9, 10, 11 of 12."""
    refused(rope() | {"slot_mapping": ints(0, 3, 7, 10)}, "V7", "slot_mapping has 10")


def test_more_dropped_tokens_than_slots_is_a_warning() -> None:
    case = four_d_alibi() | {"compress_lens": ints([0, 0], [0, 0])}
    with pytest.warns(ScatterPaKvCacheWarning, match="leave 14 tokens.*8 slots.*V9"):
        assert decide(case) is not None


def test_many_slots_are_checked_without_a_loop() -> None:
    tokens = 65536
    slots = torch.randperm(tokens, dtype=torch.int32)
    case = {
        "key": counted(tokens, 1, 1),
        "key_cache": filled(tokens // 128, 128, 1, 1),
        "slot_mapping": slots,
        "value": counted(tokens, 1, 1),
        "value_cache": filled(tokens // 128, 128, 1, 1),
    }
    assert decide(case) is not None
    slots[17] = slots[40000]
    refused(case, "V2", "slot_mapping[17] and slot_mapping[40000]")
