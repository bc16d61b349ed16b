"""HiFloat8, held in uint8: bytes to float32 and back.

Rests on the public description of the format ("Ascend HiFloat8 Format for Deep Learning", arXiv 2409.16626), not on a
device. A byte is a sign, a prefix-coded dot field, an exponent and a mantissa:

======  =============  ==================  =====================
dot     exponent bits  exponent E          mantissa bits
======  =============  ==================  =====================
11      4              +-8 .. +-15         1
10      3              +-4 .. +-7          2
01      2              +-2, +-3            3
001     1              +-1                 3
0001    0              0                   3
0000    0              denormal            3, value 2^(M - 23)
======  =============  ==================  =====================

An exponent is a sign and a magnitude without its leading 1. Normal values are 2^E * (1 + M / 2^bits).
0x00 is the only zero, 0x80 the only NaN, 0x6F and 0xEF are the infinities. Rounding is to the nearest value, ties away
from zero: 2^-23 and above round to the smallest value 2^-22, and 1.25 * 2^15 and above overflow to infinity.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

_NAN = 0x80
_INFINITY = 0x6F
_SIGN = 0x80
_NORMAL = ((0b11, 2, 4), (0b10, 2, 3), (0b01, 2, 2), (0b001, 3, 1), (0b0001, 4, 0))  # dot, its width, exponent bits


def decode(codes: Tensor) -> Tensor:
    """The float32 values of HiFloat8 bytes: uint8 of any shape -> float32 of that shape."""
    return _VALUES[codes.to(torch.int64)]


def encode(values: Tensor) -> Tensor:
    """The nearest HiFloat8 bytes: float32 of any shape -> uint8 of that shape; ties away from zero, NaN to 0x80."""
    rank = torch.bucketize(values.abs(), _MIDPOINTS, right=True)  # a midpoint counts as passed
    magnitude = _RANKED_CODES[rank]
    codes = torch.where((values < 0) & (magnitude != 0), magnitude | _SIGN, magnitude)
    return torch.where(values.isnan(), torch.full_like(codes, _NAN), codes)


def _magnitude(code: int) -> float:
    """The value of the seven bits below the sign, the infinity's being the 1.5 * 2^15 it stands in for."""
    for dot, width, exponent_bits in _NORMAL:
        if code >> (7 - width) == dot:
            mantissa_bits = 7 - width - exponent_bits
            exponent = _exponent(code >> mantissa_bits & (1 << exponent_bits) - 1, exponent_bits)
            fraction = (code & (1 << mantissa_bits) - 1) / (1 << mantissa_bits)
            return math.ldexp(1 + fraction, exponent)
    return math.ldexp(1.0, code - 23) if code else 0.0


def _exponent(field: int, bits: int) -> int:
    if bits == 0:
        return 0
    leading = 1 << (bits - 1)  # the sign bit stands where the magnitude's hidden leading 1 belongs
    return -field if field & leading else leading | field


_RANKED = sorted((_magnitude(code), code) for code in range(0x80))
_HALF = [math.inf if code == _INFINITY else _magnitude(code) for code in range(0x80)]
with torch.device("cpu"):
    _RANKED_CODES = torch.tensor([code for _, code in _RANKED], dtype=torch.uint8)
    _MIDPOINTS = torch.tensor([(low + high) / 2 for (low, _), (high, _) in pairwise(_RANKED)], dtype=torch.float32)
    _VALUES = torch.tensor([*_HALF, math.nan, *(-value for value in _HALF[1:])], dtype=torch.float32)
