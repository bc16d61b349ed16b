"""The mean of a Rope window (the operator's specification, section 4.6) and the bits that every copy must keep."""

from __future__ import annotations

from typing import Any

import _checkout  # noqa: F401
import pytest
import torch
from torch import Tensor

from scatter_pa_kv_cache.golden import alibi, compress_4d, hifloat8, nct, nhsd, norm, omni, pa_nz, rope
from scatter_pa_kv_cache.golden.mean import mean


def ints(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


MEANS = [
    (torch.float16, [2048, 2050], 2048),
    (torch.float16, [2050, 2052], 2052),
    (torch.float16, [2048, 2050, 2050], 2050),
    (torch.float16, [60000, 60000], 60000),
    (torch.float16, [1, 2, 2], 1.6669921875),
    (torch.bfloat16, [256, 258], 256),
    (torch.bfloat16, [258, 260], 260),
    (torch.bfloat16, [2.0**27, 1, -(2.0**27)], 0),
    (torch.int8, [-3, -4], -3),
    (torch.int8, [3, 4], 3),
    (torch.int8, [-128, -127], -127),
    (torch.uint8, [255, 254], 254),
    (torch.int16, [32767, 32766], 32766),
    (torch.uint16, [65535, 65534], 65534),
    (torch.int32, [2**31 - 1, 1], -(2**30)),
    (torch.uint32, [2**32 - 1, 3], 1),
    (torch.float32, [1, 2], 1.5),
    (torch.float8_e4m3fn, [1, 1.125], 1),  # a tie goes to the even mantissa
    (torch.float8_e4m3fn, [1.125, 1.25], 1.25),
    (torch.float8_e4m3fn, [448, 448], 448),
    (torch.float8_e5m2, [1.25, 1.5], 1.5),
    (torch.float8_e5m2, [57344, 57344], 57344),
]


@pytest.mark.parametrize(("dtype", "numbers", "result"), MEANS, ids=str)
def test_mean_roundings(dtype: torch.dtype, numbers: list[float], result: float) -> None:
    rows = torch.tensor(numbers, dtype=torch.float64 if dtype.is_floating_point else torch.int64).to(dtype)[:, None]
    found = mean(rows)
    assert found.dtype == dtype
    assert found.to(torch.float64).tolist() == [result]


@pytest.mark.parametrize(
    ("numbers", "code"),
    [
        ([1, 1.125], 0x09),  # 1.0625, a tie: away from zero, 1.125
        ([-1, -1.125], 0x89),
        ([1.125, 1.25], 0x0A),
        ([16, 20, 20], 0x41),  # 18.67 -> 20
        ([2.0**-22, 0], 0x01),  # half of the smallest value, a tie
        ([2.0**-22, 0, 0], 0x00),
        ([-(2.0**-22), 0, 0], 0x00),  # there is no -0.0
        ([32768, 32768], 0x6E),
        ([float("inf"), 1], 0x6F),
        ([-float("inf"), 1], 0xEF),
        ([float("inf"), -float("inf")], 0x80),
        ([float("nan"), 1], 0x80),
    ],
    ids=str,
)
def test_mean_hifloat8(numbers: list[float], code: int) -> None:
    rows = hifloat8.encode(torch.tensor(numbers))
    assert mean(rows[:, None], "hifloat8").tolist() == [code]
    key, cache = rows[:, None, None], torch.zeros(1, 1, 1, 1, dtype=torch.uint8)
    lists = {"compress_lens": ints(len(numbers)), "seq_lens": ints(len(numbers)), "compress_seq_offset": ints(0)}
    rope.reference(key, cache, ints(0), key, cache.clone(), **lists, dtype="hifloat8")
    assert cache.item() == code
    cache.zero_()
    compress_4d.reference(
        key[None], cache, ints(0), key[None], cache.clone(), scatter_mode="Rope", **lists, dtype="hifloat8"
    )
    assert cache.item() == code


def test_hifloat8_codes() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    values = hifloat8.decode(codes)
    assert torch.equal(hifloat8.encode(values), codes)
    assert len(values[values > 0].unique()) == 127
    some = {0x01: 2.0**-22, 0x07: 2.0**-16, 0x08: 1.0, 0x18: 0.5, 0x20: 4.0, 0x3F: 0.234375, 0x5C: 2.0**-7}
    some |= {0x6E: 2.0**15, 0x70: 2.0**-8, 0x7F: 1.5 * 2.0**-15, 0x88: -1.0}
    assert {code: values[code].item() for code in some} == some
    edges = torch.tensor([2.0**-23, 2.0**-23 * 0.999, 40959.0, 40960.0, 1e30, -0.0])
    assert hifloat8.encode(edges).tolist() == [0x01, 0x00, 0x6E, 0x6F, 0x6F, 0x00]


def test_mean_of_special_values() -> None:
    inf, nan = float("inf"), float("nan")
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float8_e5m2):
        rows = torch.tensor([[inf, inf, nan, -0.0], [1, -inf, 1, -0.0]]).to(dtype)
        found = mean(rows).to(torch.float32)
        assert found[0] == inf
        assert found[1:3].isnan().all()
        assert found[3:].view(torch.int32).item() == 0  # the sum starts from +0.0
    assert mean(torch.tensor([[nan], [1.0]]).to(torch.float8_e4m3fn)).to(torch.float32).isnan().all()


def test_mean_of_one_row_and_of_no_dtype() -> None:
    row = torch.tensor([[1.5, -2.25, 1e-8]])
    assert torch.equal(mean(row), row[0])
    with pytest.raises(ValueError, match="float64"):
        mean(row.double())


PAYLOADS = {
    torch.float32: [0x7FC12345, 0x7F812345, -0x80000000, 1, 0x7F800000],
    torch.float16: [0x7E01, 0x7C01, -0x8000, 1, -0x0400],
    torch.bfloat16: [0x7FC1, 0x7F81, -0x8000, 1, -0x0080],
    torch.uint16: [0, 1, -1, 0x1234, -0x8000],
    torch.uint32: [0, 1, -1, 0x12345678, -0x80000000],
    torch.float8_e4m3fn: [0x7F, -1, -0x80, 1, 0x7E],
    torch.float8_e5m2: [0x7F, 0x7D, -0x80, 1, -0x03],
    torch.uint8: [0x7F, -1, -0x80, 1, 0],
    torch.int8: [0x7F, -1, -0x80, 1, 0],
}


@pytest.mark.parametrize("dtype", PAYLOADS, ids=str)
def test_every_bit_survives(dtype: torch.dtype) -> None:
    """NaN payloads (quiet and signalling), -0.0, subnormals and infinities pass through every copy."""
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]
    codes = torch.tensor([PAYLOADS[dtype]], dtype=integer).repeat(2, 1)
    key = codes.view(dtype)[:, None]  # [2, 1, 5]
    wide = codes.repeat(1, 32).view(dtype)[:, None]  # [2, 1, 160]: whole 32-byte pieces

    def check(cache: Tensor, rows: Tensor, write) -> None:
        other = cache.clone()
        write(cache, other)
        assert torch.equal(cache.view(integer)[0, 0, 0], rows)
        assert torch.equal(cache.view(integer), other.view(integer))

    def empty(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=integer).view(dtype)

    slots = ints(0, 1)
    lists: dict[str, Any] = {"compress_lens": ints(2), "seq_lens": ints(2)}
    window: dict[str, Any] = {"compress_lens": ints(1), "seq_lens": ints(2), "compress_seq_offset": ints(1)}
    check(empty(1, 2, 1, 5), codes[0], lambda k, v: norm.reference(key, k, slots, key, v))
    check(empty(1, 1, 2, 5), codes[0], lambda k, v: nhsd.reference(key, k, slots, key, v))
    check(
        empty(1, 2, 1, 5), codes[0], lambda k, v: nct.reference(key, k, slots, key, v, strides=(5, 5), offsets=(0, 0))
    )
    lanes = 32 // dtype.itemsize
    check(
        empty(1, 160 // lanes, 2, lanes),
        codes.repeat(1, 32)[0, :lanes],
        lambda k, v: pa_nz.reference(wide, k, slots, wide, v),
    )
    check(empty(1, 2, 1, 5), codes[0], lambda k, v: alibi.reference(key, k, ints(0), key, v, **lists))
    check(empty(1, 2, 1, 5), codes[0], lambda k, v: omni.reference(key, k, ints(0), key, v, **window))
    check(empty(1, 2, 1, 5), codes[0], lambda k, v: rope.reference(key, k, ints(0), key, v, **window))
    padded = key[None]
    check(
        empty(1, 2, 1, 5),
        codes[0],
        lambda k, v: compress_4d.reference(padded, k, ints(0), padded, v, scatter_mode="Alibi", **lists),
    )
