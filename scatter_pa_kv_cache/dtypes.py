"""The data types of keys, values and caches: names, widths and torch storage. Needs no torch."""

from __future__ import annotations

from typing import NamedTuple


class DType(NamedTuple):
    """A logical data type and how torch stores it."""

    name: str
    bits: int
    storage: str  # name of the torch dtype whose tensors hold it


DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        DType("float16", 16, "float16"),
        DType("bfloat16", 16, "bfloat16"),
        DType("float32", 32, "float32"),
        DType("int8", 8, "int8"),
        DType("uint8", 8, "uint8"),
        DType("int16", 16, "int16"),
        DType("uint16", 16, "uint16"),
        DType("int32", 32, "int32"),
        DType("uint32", 32, "uint32"),
        DType("float8_e4m3fn", 8, "float8_e4m3fn"),
        DType("float8_e5m2", 8, "float8_e5m2"),
        DType("hifloat8", 8, "uint8"),
        DType("float4_e2m1", 4, "uint8"),  # two elements a byte
        DType("float4_e1m2", 4, "uint8"),  # two elements a byte
    )
}

FLOAT4 = ("float4_e2m1", "float4_e1m2")
A2_A3_DTYPES = ("float16", "bfloat16", "int8")
ALL_DTYPES = tuple(DTYPES)
INDEX_DTYPES = ("int32", "int64")


def elements_in_32_bytes(dtype: str) -> int:
    """Elements of a logical dtype in the 32 bytes of one PA_NZ row (SPEC's L)."""
    return 256 // DTYPES[dtype].bits
