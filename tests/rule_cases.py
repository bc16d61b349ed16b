"""The base inputs of section 6 of the operator's specification, as keyword arguments, and the judge of a call."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor

from scatter_pa_kv_cache.arguments import normalise
from scatter_pa_kv_cache.data_rules import check_data
from scatter_pa_kv_cache.errors import (
    DataError,
    InvalidParameterError,
    NullPointerError,
    ScatterPaKvCacheError,
    TilingError,
)
from scatter_pa_kv_cache.rules import Choice, choose

Case = dict[str, Any]
HALF, BHALF, SINGLE, WIDE = torch.float16, torch.bfloat16, torch.float32, torch.int64
CODES = {"A": (NullPointerError, 161001), "C": (InvalidParameterError, 161002), "D": (InvalidParameterError, 161002)}
CODES |= dict.fromkeys("EFJNHKG", (TilingError, 561002)) | {"V": (DataError, 161002)}


def counted(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    """A tensor that counts up in steps of one from 0, modulo 100 so that every dtype holds it."""
    return (torch.arange(prod(shape)) % 100).reshape(shape).to(dtype)


def filled(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    """A cache full of sevens."""
    return torch.full(shape, 7, dtype=torch.int32).to(dtype)


def ints(*numbers: Any, dtype: torch.dtype = torch.int32) -> Tensor:
    """An index tensor."""
    return torch.tensor(numbers, dtype=dtype)


def norm(dtype: torch.dtype = torch.float16) -> Case:
    """Scenario 2, None: T3 H2 Dk4 Dv6 NB2 BS4."""
    return {
        "key": counted(3, 2, 4, dtype=dtype),
        "key_cache": filled(2, 4, 2, 4, dtype=dtype),
        "slot_mapping": ints(0, 5, -1),
        "value": counted(3, 2, 6, dtype=dtype),
        "value_cache": filled(2, 4, 2, 6, dtype=dtype),
    }


def nct() -> Case:
    """Scenario 2, Nct, with the strides of a dense buffer."""
    return norm() | {"scatter_mode": "Nct", "strides": (8, 12), "offsets": (0, 0)}


def siso() -> Case:
    """Scenario 6: key only, told by rank-0 tensors."""
    return norm() | {"value": torch.zeros((), dtype=torch.float16), "value_cache": torch.zeros((), dtype=torch.float16)}


def nz4(dtype: torch.dtype = torch.float16) -> Case:
    """Scenario 1, 4-D caches: T3 H2 Dk32 Dv64 NB2 BS8 for 16-bit types."""
    return {
        "key": counted(3, 2, 32, dtype=dtype),
        "key_cache": filled(2, 4, 8, 16, dtype=dtype),
        "slot_mapping": ints(0, 5, -1),
        "value": counted(3, 2, 64, dtype=dtype),
        "value_cache": filled(2, 8, 8, 16, dtype=dtype),
        "cache_mode": "PA_NZ",
    }


def nz5() -> Case:
    """Scenario 1, the same memory with 5-D caches."""
    return nz4() | {"key_cache": filled(2, 2, 2, 8, 16), "value_cache": filled(2, 2, 4, 8, 16)}


def alibi(dtype: torch.dtype = torch.float16) -> Case:
    """Scenario 4: B2 H2 D32, lengths 3 and 2, NB2 BS4."""
    return {
        "key": counted(5, 2, 32, dtype=dtype),
        "key_cache": filled(2, 4, 1, 32, dtype=dtype),
        "slot_mapping": ints(0, 3, 4, 6),
        "value": counted(5, 2, 32, dtype=dtype),
        "value_cache": filled(2, 4, 1, 32, dtype=dtype),
        "compress_lens": ints(2, 1, 1, 2),
        "seq_lens": ints(3, 2),
        "scatter_mode": "Alibi",
    }


def rope(dtype: torch.dtype = torch.float16) -> Case:
    """Scenario 5: B2 H2 D32, lengths 4 and 3, NB3 BS4."""
    return {
        "key": counted(7, 2, 32, dtype=dtype),
        "key_cache": filled(3, 4, 1, 32, dtype=dtype),
        "slot_mapping": ints(0, 3, 7, 9),
        "value": counted(7, 2, 32, dtype=dtype),
        "value_cache": filled(3, 4, 1, 32, dtype=dtype),
        "compress_lens": ints(2, 2, 2, 1),
        "compress_seq_offset": ints(1, -1, 0, 3),
        "seq_lens": ints(4, 3),
        "scatter_mode": "Rope",
    }


def four_d(dtype: torch.dtype = torch.float32) -> Case:
    """Scenario 3, Rope: B2 L4 H2 Dk8 Dv6, lengths 4 and 3, NB3 BS4."""
    return {
        "key": counted(2, 4, 2, 8, dtype=dtype),
        "key_cache": filled(3, 4, 1, 8, dtype=dtype),
        "slot_mapping": ints([0, 3], [7, 9]),
        "value": counted(2, 4, 2, 6, dtype=dtype),
        "value_cache": filled(3, 4, 1, 6, dtype=dtype),
        "compress_lens": ints([2, 1], [2, 1]),
        "compress_seq_offset": ints(1, 0, 0, 1),
        "seq_lens": ints(4, 3),
        "scatter_mode": "Rope",
    }


def four_d_alibi() -> Case:
    """Scenario 3, Alibi: the same keys, NB2 BS4."""
    return four_d() | {
        "key_cache": filled(2, 4, 1, 8, dtype=torch.float32),
        "slot_mapping": ints([0, 2], [3, 6]),
        "value_cache": filled(2, 4, 1, 6, dtype=torch.float32),
        "compress_lens": ints([2, 1], [3, 2]),
        "compress_seq_offset": None,
        "scatter_mode": "Alibi",
    }


def nhsd() -> Case:
    """Scenario 7: T2 H2 Dk16 Dv32 NB2 BS3."""
    return {
        "key": counted(2, 2, 16),
        "key_cache": filled(2, 2, 3, 16),
        "slot_mapping": ints(4, 2),
        "value": counted(2, 2, 32),
        "value_cache": filled(2, 2, 3, 32),
        "scatter_mode": "NHSD",
    }


def nhsd_on_meta(heads: int, key_size: int, value_size: int, block_size: int = 3) -> Case:
    """Scenario 7 of any size, without memory."""
    return {
        name: torch.empty(shape, dtype=torch.float16, device="meta")
        for name, shape in (
            ("key", (2, heads, key_size)),
            ("key_cache", (2, heads, block_size, key_size)),
            ("value", (2, heads, value_size)),
            ("value_cache", (2, heads, block_size, value_size)),
        )
    } | {"slot_mapping": torch.empty(2, dtype=torch.int32, device="meta"), "scatter_mode": "NHSD"}


def nz4_on_meta(block_size: int) -> Case:
    """Scenario 1 with 4-D caches of any block size, without memory."""
    case = {
        name: tensor.to("meta") if isinstance(tensor, Tensor) else tensor
        for name, tensor in nz4().items()
        if not name.endswith("_cache")
    }
    return case | {
        "key_cache": torch.empty(2, 4, block_size, 16, dtype=torch.float16, device="meta"),
        "value_cache": torch.empty(2, 8, block_size, 16, dtype=torch.float16, device="meta"),
    }


def nz_int8_value(**changes: Any) -> Case:
    """Scenario 1 with a float16 key and an int8 value."""
    return (
        nz4()
        | {"value": counted(3, 2, 64, dtype=torch.int8), "value_cache": filled(2, 4, 8, 32, dtype=torch.int8)}
        | changes
    )


def float4(case: Case, dtype: str) -> Case:
    """The same call with its keys and values stored as packed 4-bit types: each byte two elements."""
    sides = ("key", "key_cache", "value", "value_cache")
    packed = {name: case[name].to(torch.uint8)[..., ::2].contiguous() for name in sides}
    return case | packed | {"key_dtype": dtype, "value_dtype": dtype}


BASES = (norm, nct, siso, nz4, nz5, alibi, rope, four_d, four_d_alibi, nhsd)


def decide(case: Case) -> Choice | None:
    """Normalise, choose and check the data of a call, as a checked call does before it is launched."""
    readable = all(not isinstance(given, Tensor) or given.device.type != "meta" for given in case.values())
    arguments = normalise(**case)
    choice = choose(arguments.spec)
    if choice is not None and readable:
        check_data(arguments, choice)
    return choice


def bits(case: Case) -> list[Tensor]:
    """A copy of the memory of the caches of a call, as bytes."""
    caches = (case.get("key_cache"), case.get("value_cache"))
    return [
        cache.clone().flatten().view(torch.uint8)
        for cache in caches
        if isinstance(cache, Tensor) and cache.dim() and cache.device.type != "meta"
    ]


def refused(case: Case, rule: str, name: str) -> ScatterPaKvCacheError:
    """The error of a call that must break this very rule, name the argument, and leave the caches alone."""
    before = bits(case)
    with pytest.raises(ScatterPaKvCacheError) as caught:
        decide(case)
    error = caught.value
    kind, code = (InvalidParameterError, 161002) if rule == "argument" else CODES[rule[0]]
    assert (type(error), error.code, error.rule) == (kind, code, rule), str(error)
    assert name in str(error)
    assert all(map(torch.equal, before, bits(case)))
    return error
