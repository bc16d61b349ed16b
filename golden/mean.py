"""The mean of a Rope window, dtype by dtype (the operator's specification, section 4.6)."""

from __future__ import annotations

import torch
from torch import Tensor

from . import hifloat8

_SIGNED = ("int8", "int16", "int32")
_UNSIGNED = ("uint8", "uint16", "uint32")
_FLOAT = ("float16", "bfloat16", "float32", "float8_e5m2", "float8_e4m3fn")
_NAMES = (*_FLOAT, "hifloat8", *_SIGNED, *_UNSIGNED)


def mean(rows: Tensor, dtype: str | None = None) -> Tensor:
    """Average rows [n, D], n >= 1, over the first axis: [D] in the dtype of ``rows``.

    Rows are added one by one in ascending order, starting from zero, and the sum is divided once by n. Floating types
    add in float32 and round to the nearest value at the end, ties to even (hifloat8: ties away from zero). Because the
    sum starts from +0.0, a window of -0.0 averages to +0.0, also for n = 1. Integers add in 32 bits, modulo 2^32, and
    the quotient is cut toward zero. ``dtype`` names the logical dtype where torch's does not: "hifloat8" in uint8
    storage. Raises ValueError for a dtype that has no mean.
    """
    name = dtype or str(rows.dtype).removeprefix("torch.")
    if name == "hifloat8":
        return hifloat8.encode(_float_mean(hifloat8.decode(rows)))
    if name in _FLOAT:
        return _float_mean(rows.to(torch.float32)).to(rows.dtype)
    if name in _SIGNED:
        return _integer_mean(rows, lowest=-(2**31)).to(rows.dtype)
    if name in _UNSIGNED:
        return _integer_mean(rows, lowest=0).to(rows.dtype)
    raise ValueError(f"the dtype of the rows is {name}; it must be one of {', '.join(_NAMES)}")


def _float_mean(rows: Tensor) -> Tensor:
    total = torch.zeros_like(rows[0])
    for row in rows:
        total = total + row
    return total / torch.full_like(total, len(rows))


def _integer_mean(rows: Tensor, lowest: int) -> Tensor:
    total = torch.zeros_like(rows[0], dtype=torch.int64)
    for row in rows:
        total = ((total + row.to(torch.int64) - lowest) & 0xFFFFFFFF) + lowest  # wraps like a 32-bit sum
    return torch.div(total, len(rows), rounding_mode="trunc")
