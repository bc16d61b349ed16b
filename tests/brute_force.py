"""A second formulation of the operator's specification, to check golden/ with: pure integers, cache element by element.

Where golden/ walks over tokens and writes, this walks over the elements of a cache and asks which source element, if
any, each of them takes (a map of storage addresses); means are computed in Python floats and exact integers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from math import copysign, inf, isinf, isnan, nan
from typing import NamedTuple

import torch
from torch import Tensor

Addresses = dict[int, int | tuple[int, ...]]  # cache element -> source element to copy, or elements to average
_CODES = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}


class Layout(NamedTuple):
    """How a tensor lies in its storage, in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    origin: int

    @classmethod
    def of(cls, tensor: Tensor) -> Layout:
        return cls(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def address(self, *place: int) -> int:
        return self.origin + sum(index * stride for index, stride in zip(place, self.strides, strict=True))


def memory(tensor: Tensor) -> list[int]:
    """Every element of the tensor's whole storage as an unsigned integer, gaps included."""
    flat = torch.empty(0, dtype=_CODES[tensor.element_size()]).set_(tensor.untyped_storage())
    return flat.tolist()


def token_addresses(
    kind: str, source: Layout, cache: Layout, slots: Sequence[int], stride: int = 0, offset: int = 0
) -> Addresses:
    """The map of scenarios 1, 2, 6 and 7: kind is "norm", "nct", "pa_nz" or "nhsd" (sections 4.1, 4.2 and 4.8)."""
    size = source.shape[2]
    places: dict[str, Callable[..., tuple[int, int]]] = {
        "norm": lambda block, place, head, d: (block * cache.shape[1] + place, head * size + d),
        "nct": lambda block, place, head, d: (block * cache.shape[1] + place, head * size + d),
        "nhsd": lambda block, head, place, d: (block * cache.shape[2] + place, head * size + d),
        "pa_nz4": lambda block, piece, place, e: (block * cache.shape[2] + place, piece * cache.shape[3] + e),
        "pa_nz5": lambda block, head, piece, place, e: (
            block * cache.shape[3] + place,
            head * size + piece * cache.shape[4] + e,
        ),
    }
    slot_and_feature = places[f"{kind}{len(cache.shape)}" if kind == "pa_nz" else kind]
    found: Addresses = {}
    for place in product(*map(range, cache.shape)):
        slot, feature = slot_and_feature(*place)
        tokens = [token for token, named in enumerate(slots) if named == slot]
        if not tokens:
            continue
        if kind == "nct":
            element = source.origin + tokens[-1] * stride + offset + feature
        else:
            element = source.address(tokens[-1], feature // size, feature % size)
        found[cache.address(*place)] = element
    return found


def compressed_addresses(
    kind: str,
    source: Layout,
    cache: Layout,
    slots: Sequence[int],
    windows: Sequence[int],
    lengths: Sequence[int],
    offsets: Sequence[int] = (),
) -> Addresses:
    """The map of scenarios 3, 4 and 5: kind is "Alibi", "Rope" or "Omni" (sections 4.3 to 4.5), one entry a task."""
    heads = source.shape[-2]
    found: Addresses = {}
    for block, place, d in product(range(cache.shape[0]), range(cache.shape[1]), range(cache.shape[3])):
        row = block * cache.shape[1] + place
        for t, slot in enumerate(slots):
            batch, head, offset = t // heads, t % heads, offsets[t] if kind != "Alibi" else 0
            if slot < 0:
                continue
            taken = _positions(kind, row - slot, windows[t], lengths[batch], offset)
            if taken is None:
                continue
            start = (batch, 0) if len(source.shape) == 4 else (sum(lengths[:batch]),)
            first, step = source.address(*start, head, d), source.strides[-3]
            target = cache.address(block, place, 0, d)
            if isinstance(taken, int):
                found[target] = first + taken * step
            else:
                found[target] = tuple(first + j * step for j in taken)
    return found


def _positions(kind: str, k: int, window: int, length: int, offset: int) -> int | range | None:
    """The position in the sequence that the k-th row of a task copies, the positions it averages, or None."""
    if k < 0:
        return None
    if kind == "Alibi":
        j = length - window + k
        return j if k < window and j >= 0 else None
    if offset == -1 or window == 0 or offset == length or k < offset:
        return k if k < length else None
    if kind == "Rope" and k == offset:
        return range(offset, offset + window)
    j = k + window - (1 if kind == "Rope" else 0)
    return j if j < length else None


def expected(source: Tensor, cache: Tensor, addresses: Addresses, mean_of: str | None = None) -> list[int]:
    """The cache's whole storage after the writes; ``mean_of`` names the dtype of the entries to average."""
    before, after = memory(source), memory(cache)
    means: dict[tuple[int, ...], int] = {}
    for target, elements in addresses.items():
        if isinstance(elements, int):
            after[target] = before[elements]
            continue
        if elements not in means:
            means[elements] = mean_code([before[element] for element in elements], str(mean_of))
        after[target] = means[elements]
    return after


def mean_code(codes: Sequence[int], dtype: str) -> int:
    """The mean of elements given and returned as unsigned bit patterns (section 4.6)."""
    if "int" in dtype:
        width = int(dtype.removeprefix("u").removeprefix("int"))
        numbers = [code - (code >> (width - 1) << width) if dtype.startswith("int") else code for code in codes]
        total = sum(numbers) % 2**32
        if dtype.startswith("int") and total >= 2**31:
            total -= 2**32
        quotient = abs(total) // len(codes)
        return (quotient if total >= 0 else -quotient) % 2**width
    total_float = 0.0
    for code in codes:
        total_float = _single(total_float + decode(code, dtype))
    return encode(_single(total_float / len(codes)), dtype)


def decode(code: int, dtype: str) -> float:
    """The value of a floating bit pattern."""
    if dtype == "float32":
        return struct.unpack("<f", struct.pack("<I", code))[0]
    if dtype == "bfloat16":
        return struct.unpack("<f", struct.pack("<I", code << 16))[0]
    if dtype == "float16":
        return struct.unpack("<e", struct.pack("<H", code))[0]
    if dtype == "hifloat8":
        return _hifloat8(code)
    exponent_bits = {"float8_e4m3fn": 4, "float8_e5m2": 5}[dtype]
    mantissa_bits, sign = 7 - exponent_bits, -1.0 if code >> 7 else 1.0
    exponent, fraction = code >> mantissa_bits & (1 << exponent_bits) - 1, code % (1 << mantissa_bits)
    bias = (1 << (exponent_bits - 1)) - 1
    if dtype == "float8_e5m2" and exponent == 31:
        return nan if fraction else sign * inf
    if dtype == "float8_e4m3fn" and code % 128 == 127:
        return nan
    significand = fraction + (1 << mantissa_bits if exponent else 0)
    return sign * significand * 2.0 ** (max(exponent, 1) - bias - mantissa_bits)


def _hifloat8(code: int) -> float:
    text = f"{code:08b}"
    sign, body = -1.0 if text[0] == "1" else 1.0, text[1:]
    if body == "0000000":
        return nan if text[0] == "1" else 0.0
    if body == "1101111":
        return sign * inf
    prefixes = {"0000": None, "0001": 0, "001": 1, "01": 2, "10": 3, "11": 4}
    dot = next(prefix for prefix in prefixes if body.startswith(prefix))
    rest, width = body[len(dot) :], prefixes[dot]
    if width is None:
        return sign * 2.0 ** (int(rest, 2) - 23)
    field, mantissa = rest[:width], rest[width:]
    exponent = 0 if not field else int("1" + field[1:], 2) * (-1 if field[0] == "1" else 1)
    return sign * 2.0**exponent * (1 + int(mantissa, 2) / 2 ** len(mantissa))


def encode(value: float, dtype: str) -> int:
    """The bit pattern nearest to a float32 value: of the 8-bit ones by exact distance to each."""
    if dtype == "float32":
        return struct.unpack("<I", struct.pack("<f", value))[0]
    if dtype == "bfloat16":
        wide = struct.unpack("<I", struct.pack("<f", value))[0]
        low, high = wide & 0xFFFF, wide >> 16
        return high + (low > 0x8000 or (low == 0x8000 and high % 2 == 1))
    if dtype == "float16":
        try:
            return struct.unpack("<H", struct.pack("<e", value))[0]
        except OverflowError:
            return 0xFC00 if value < 0 else 0x7C00
    sign = 0 if dtype == "hifloat8" and value == 0 else (0x80 if copysign(1.0, value) < 0 else 0)
    assert not isnan(value), "NaN patterns are tested by hand"
    if isinf(value):
        return sign | {"hifloat8": 0x6F, "float8_e5m2": 0x7C}[dtype]
    finite = [code for code in range(0x80) if decode(code, dtype) < inf]  # leaves NaN out too
    distance = {code: abs(Fraction(decode(code, dtype)) - Fraction(abs(value))) for code in finite}
    nearest = [code for code in finite if distance[code] == min(distance.values())]
    if dtype == "hifloat8":
        code = max(nearest, key=lambda code: decode(code, dtype))
    else:
        code = min(nearest, key=lambda code: code % 2)
    return sign | code if code or dtype != "hifloat8" else 0


def _single(value: float) -> float:
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return copysign(inf, value)
