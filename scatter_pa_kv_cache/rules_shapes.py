"""Rules F, J, N and H: the shapes of the plain scenarios, and what all 3-D scenarios share.

Section 6 of the operator's specification: F for all, J for Nct (a strided source buffer), N for PA_NZ, H for NHSD.
"""

from __future__ import annotations

from functools import partial

from .dtypes import DTYPES, FLOAT4, elements_in_32_bytes
from .errors import TilingError
from .rule_types import Call, Rule, shape
from .scenarios import A2_A3

BLOCK_SIZE_LIMIT = 65535
NHSD_HEADS_LIMIT = 4095
NHSD_BLOCK_LIMIT = 2**32 - 1
NHSD_TOKEN_BYTES_LIMIT = 196608


def _bits(dtype: str) -> int:
    return DTYPES[dtype].bits


def _same_tokens_and_heads(call: Call) -> str | None:
    if call.value.shape[:2] == call.key.shape[:2]:
        return None
    return f"value has shape {shape(call.value)}; its first two dims must be key's, {list(call.key.shape[:2])}"


def _slot_rank(call: Call) -> str | None:
    if call.slot_mapping.rank == 1:
        return None
    return f"slot_mapping has shape {shape(call.slot_mapping)}; with a 3-D key it must have rank 1"


def _slot_length(call: Call) -> str | None:
    if call.slot_mapping.shape[0] == call.tokens:
        return None
    return (
        f"slot_mapping has {call.slot_mapping.shape[0]} slots; it must have one for each of key's {call.tokens} tokens"
    )


def _cache_rank(call: Call) -> str | None:
    for side in call.sides:
        if side.cache.rank != 4:
            form = "[NB, H, BS, D]" if call.scatter_mode == "NHSD" else "[NB, BS, H, D] (H = 1 when compressed)"
            return f"{side.cache_name} has shape {shape(side.cache)}; it must have rank 4, {form}"
    return None


def _capacity(call: Call) -> str | None:
    if call.capacity >= call.tokens:
        return None
    return f"key_cache holds {call.capacity} slots (NB * BS); it must hold at least key's {call.tokens} tokens"


def _cache_agrees(call: Call) -> str | None:
    for side in call.sides:
        if side.cache.shape[3] != side.head_size:
            return (
                f"{side.cache_name} has shape {shape(side.cache)}; its last dim must be {side.name}'s head size, "
                f"{side.head_size}"
            )
        if side.cache.shape[:3] != call.key_cache.shape[:3]:
            return (
                f"{side.cache_name} has shape {shape(side.cache)}; its first three dims must be key_cache's, "
                f"{list(call.key_cache.shape[:3])}"
            )
    return None


def _cache_heads(call: Call) -> str | None:
    if call.key_cache.shape[2] == call.heads:
        return None
    return f"key_cache has shape {shape(call.key_cache)}; its dim 2 (as value_cache's) must be key's {call.heads} heads"


def _float4_even(call: Call) -> str | None:
    for side in call.sides:
        if side.tensor.dtype in FLOAT4 and side.head_size % 2:
            return f"{side.name} is {side.tensor.dtype} with head size {side.head_size}; it must be even"
    return None


def _device_rows(call: Call) -> str | None:
    key, value = call.sides
    if value.head_size != key.head_size:
        return f"value has head size {value.head_size}; on {call.spec.soc} it must be key's, {key.head_size}"
    if key.head_size * _bits(key.tensor.dtype) % 256:
        return (
            f"key has head size {key.head_size} of {key.tensor.dtype}; on {call.spec.soc} it must be a multiple of "
            "32 bytes"
        )
    return None


def _two_entries(call: Call) -> str | None:
    for name in ("strides", "offsets"):
        numbers = getattr(call.spec, name)
        if numbers is None or len(numbers) != 2:
            return f"{name} is {numbers}; Nct must have two entries, one for key and one for value"
    return None


def _strides_positive(call: Call) -> str | None:
    if min(call.spec.strides or ()) > 0:
        return None
    return f"strides is {call.spec.strides}; each entry must be greater than 0"


def _offsets_not_negative(call: Call) -> str | None:
    if min(call.spec.offsets or ()) >= 0:
        return None
    return f"offsets is {call.spec.offsets}; no entry may be negative"


def _within_buffer(call: Call) -> str | None:
    for side in call.sides:
        stride, offset = (call.spec.strides or ())[side.place], (call.spec.offsets or ())[side.place]
        end = (call.tokens - 1) * stride + offset + call.heads * side.head_size
        if end > side.tensor.reachable:
            return (
                f"{side.name}'s buffer has {side.tensor.reachable} elements from {side.name}'s first one; with "
                f"strides[{side.place}] {stride} and offsets[{side.place}] {offset} it must have {end}"
            )
    return None


def _nz_rank(call: Call) -> str | None:
    if call.key_cache.rank in (4, 5) and call.value_cache.rank == call.key_cache.rank:
        return None
    return (
        f"key_cache has shape {shape(call.key_cache)} and value_cache {shape(call.value_cache)}; in PA_NZ both must "
        "have rank 4, [NB, H*D/L, BS, L], or both rank 5, [NB, H, D/L, BS, L]"
    )


def _nz_block_size(call: Call) -> str | None:
    for side in call.sides:
        size = call.block_size(side.cache)
        if size >= BLOCK_SIZE_LIMIT:
            return (
                f"{side.cache_name} has blocks of {size} slots; in PA_NZ they must be smaller than {BLOCK_SIZE_LIMIT}"
            )
    return None


def _nz_caches_agree(call: Call) -> str | None:
    blocks, size = call.key_cache.shape[0], call.block_size(call.key_cache)
    if (call.value_cache.shape[0], call.block_size(call.value_cache)) == (blocks, size):
        return None
    return (
        f"value_cache has shape {shape(call.value_cache)}; it must have key_cache's {blocks} blocks of {size} slots "
        f"(key_cache has shape {shape(call.key_cache)})"
    )


def _nz_last_dim(call: Call, place: int) -> str | None:
    side = call.sides[place]
    width = elements_in_32_bytes(side.tensor.dtype)
    if side.cache.shape[-1] == width:
        return None
    dtype = side.tensor.dtype
    return f"{side.cache_name} has shape {shape(side.cache)}; its last dim must be 32 bytes, {width} of {dtype}"


def _rows_of_32_bytes(call: Call) -> str | None:
    for side in call.sides:
        if side.head_size * _bits(side.tensor.dtype) % 256:
            return (
                f"{side.name} has head size {side.head_size} of {side.tensor.dtype}; "
                f"it must be a multiple of 32 bytes, {elements_in_32_bytes(side.tensor.dtype)} elements"
            )
    return None


def _nz_groups(call: Call, rank: int) -> str | None:
    if call.key_cache.rank != rank:
        return None
    for side in call.sides:
        chunks = side.head_size // elements_in_32_bytes(side.tensor.dtype)
        groups = (call.heads * chunks,) if rank == 4 else (call.heads, chunks)
        if side.cache.shape[1:-2] != groups:
            dims = "dim 1 must be H*D/L," if rank == 4 else "dims 1 and 2 must be H and D/L,"
            return f"{side.cache_name} has shape {shape(side.cache)}; its {dims} {', '.join(map(str, groups))}"
    return None


def _nz_int8_value(call: Call) -> str | None:
    if call.value.dtype != "int8" or call.key.dtype == "int8":
        return None
    return f"value is int8 and key {call.key.dtype}; on {call.spec.soc} key must be int8 too"


def _nhsd_key_cache(call: Call) -> str | None:
    heads, head_size = call.key.shape[1:]
    if (call.key_cache.shape[1], call.key_cache.shape[3]) == (heads, head_size):
        return None
    return f"key_cache has shape {shape(call.key_cache)}; in NHSD it must be [NB, {heads}, BS, {head_size}]"


def _nhsd_value_cache(call: Call) -> str | None:
    wanted = (*call.key_cache.shape[:3], call.value.shape[2])
    if call.value_cache.shape == wanted:
        return None
    return f"value_cache has shape {shape(call.value_cache)}; in NHSD it must be {list(wanted)}"


def _nhsd_heads(call: Call) -> str | None:
    if call.heads < NHSD_HEADS_LIMIT:
        return None
    return f"key has {call.heads} heads; in NHSD there must be fewer than {NHSD_HEADS_LIMIT}"


def _nhsd_block(call: Call) -> str | None:
    for side in call.sides:
        size = call.block_size(side.cache) * side.head_size
        if size >= NHSD_BLOCK_LIMIT:
            return (
                f"{side.cache_name} has {size} elements per head of a block (BS * D); in NHSD there must be fewer than "
                f"{NHSD_BLOCK_LIMIT}"
            )
    return None


def _nhsd_token(call: Call) -> str | None:
    size = call.heads * sum(side.head_size * _bits(side.tensor.dtype) for side in call.sides) // 8
    if size < NHSD_TOKEN_BYTES_LIMIT:
        return None
    return f"key and value have {size} bytes per token; in NHSD there must be fewer than {NHSD_TOKEN_BYTES_LIMIT}"


_T = TilingError
SHAPE_RULES: tuple[Rule[Call], ...] = (
    Rule("F1", _T, "key and value agree in dims 0 and 1", _same_tokens_and_heads, (1, 2, 4, 5, 7)),
    Rule("F2", _T, "slot_mapping has rank 1", _slot_rank, (1, 2, 4, 5, 6, 7)),
    Rule("F3", _T, "slot_mapping has one slot per token", _slot_length, (1, 2, 6, 7)),
    Rule("F4", _T, "the caches have rank 4", _cache_rank, (2, 4, 5, 6, 7)),
    Rule("F5", _T, "NB * BS >= T", _capacity, (2, 4, 5, 6, 7)),
    Rule("F6", _T, "cache dim 3 is the head size; the caches agree in dims 0 to 2", _cache_agrees, (2, 4, 5, 6)),
    Rule("F7", _T, "cache dim 2 is H", _cache_heads, (2, 6)),
    Rule("F8", _T, "4-bit types: even head sizes", _float4_even, (1, 2)),
    Rule("F9", _T, "A2/A3: Dv = Dk, a multiple of 32 bytes", _device_rows, (4, 5), products=A2_A3),
    Rule("J1", _T, "strides and offsets have two entries", _two_entries, (2, 6), ("Nct",)),
    Rule("J2", _T, "strides > 0", _strides_positive, (2, 6), ("Nct",)),
    Rule("J3", _T, "offsets >= 0", _offsets_not_negative, (2, 6), ("Nct",)),
    Rule("J4", _T, "(T-1) * stride + offset + H*D elements lie in the buffer", _within_buffer, (2, 6), ("Nct",)),
    Rule("N1", _T, "the caches have rank 4 or 5, both the same", _nz_rank, (1,)),
    Rule("N2", _T, "BS < 65535", _nz_block_size, (1,)),
    Rule("N3", _T, "NB * BS >= T", _capacity, (1,)),
    Rule("N4", _T, "the caches agree in NB and BS", _nz_caches_agree, (1,)),
    Rule("N5", _T, "the last dim of key_cache is 32 bytes", partial(_nz_last_dim, place=0), (1,)),
    Rule("N6", _T, "the last dim of value_cache is 32 bytes", partial(_nz_last_dim, place=1), (1,)),
    Rule("N7", _T, "Dk and Dv are multiples of 32 bytes", _rows_of_32_bytes, (1,)),
    Rule("N8", _T, "4-D: dim 1 is H*D/L", partial(_nz_groups, rank=4), (1,)),
    Rule("N9", _T, "5-D: dims 1 and 2 are H and D/L", partial(_nz_groups, rank=5), (1,)),
    Rule("N10", _T, "A2/A3: an int8 value needs an int8 key", _nz_int8_value, (1,), products=A2_A3),
    Rule("H1", _T, "key_cache dims 1 and 3 are H and Dk", _nhsd_key_cache, (7,)),
    Rule("H2", _T, "value_cache agrees in dims 0 to 2, dim 3 is Dv", _nhsd_value_cache, (7,)),
    Rule("H3", _T, "Dk and Dv are multiples of 32 bytes", _rows_of_32_bytes, (7,)),
    Rule("H4", _T, "H < 4095", _nhsd_heads, (7,)),
    Rule("H5", _T, "BS * Dk and BS * Dv < 2**32 - 1", _nhsd_block, (7,)),
    Rule("H6", _T, "H * (Dk + Dv) has fewer than 196608 bytes", _nhsd_token, (7,)),
)
