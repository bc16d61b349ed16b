"""What a gather must be like: its call, normalised, and the rules that accept or refuse it.

The checks are those of CANN's operator GatherPaKvCache; their ids begin with R, for read, and they stand in the order
in which they are applied.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

from torch import Tensor

from .arguments import TensorSpec, check_soc, check_tensors, resolve_mode
from .dtypes import A2_A3_DTYPES, ALL_DTYPES, DTYPES, FLOAT4, INDEX_DTYPES, elements_in_32_bytes
from .errors import DataError, InvalidParameterError, NullPointerError, ScatterPaKvCacheError, TilingError
from .rule_types import Rule, enforce, shape
from .scenarios import A2_A3

CACHE_MODES = ("Norm", "PA_NZ")
MOST_TOKEN_BYTES = 148 * 1024
NAMES = ("key_cache", "value_cache", "block_tables", "seq_lens", "key", "value", "seq_offset")
_950_DTYPES = tuple(name for name in ALL_DTYPES if name not in FLOAT4)


class GatherSpec(NamedTuple):
    """A gather without its tensors. ``soc`` None means the union of all products."""

    key_cache: TensorSpec
    value_cache: TensorSpec
    block_tables: TensorSpec
    seq_lens: TensorSpec
    key: TensorSpec
    value: TensorSpec
    seq_offset: TensorSpec | None
    cache_mode: str
    is_seq_lens_cumsum: bool
    soc: str | None

    @property
    def block_axis(self) -> int:
        """The axis of a cache that counts the places of a block."""
        return 1 if self.cache_mode == "Norm" else 2

    def side(self, name: str) -> tuple[TensorSpec, TensorSpec]:
        """The result and the cache of "key" or "value"."""
        return getattr(self, name), getattr(self, f"{name}_cache")


class GatherCall(NamedTuple):
    """A gather as given, and its description. Until the rules have accepted it any tensor may be None."""

    key_cache: Tensor
    value_cache: Tensor
    block_tables: Tensor
    seq_lens: Tensor
    key: Tensor
    value: Tensor
    seq_offset: Tensor | None
    spec: GatherSpec


class Lengths(NamedTuple):
    """Index data of a gather on the host."""

    seq_lens: list[int]
    seq_offset: list[int]
    is_cumsum: bool


def normalise(tensors: tuple[Tensor | None, ...], cache_mode: str | None, cumsum: bool, soc: str | None) -> GatherCall:
    """Describe a gather; ``tensors`` in the order of NAMES. Raises InvalidParameterError (rule "argument")."""
    check_tensors(NAMES, tensors)
    check_soc(soc)
    mode = resolve_mode("cache_mode", cache_mode, "Norm")
    if not isinstance(cumsum, bool):
        raise InvalidParameterError(f"is_seq_lens_cumsum is {cumsum!r}; it must be True or False")
    given: dict[str, Any] = dict(zip(NAMES, tensors, strict=True))
    specs: dict[str, Any] = {name: None if tensor is None else _spec(tensor) for name, tensor in given.items()}
    return GatherCall(**given, spec=GatherSpec(**specs, cache_mode=mode, is_seq_lens_cumsum=cumsum, soc=soc))


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


@lru_cache(maxsize=1024)
def accept(spec: GatherSpec) -> bool:
    """Is there anything to copy? Raises the error of the first broken rule.

    A gather with an empty cache or result is accepted once none of its tensors is None, and does nothing.
    """
    enforce(NULL_RULES, spec)
    if any(0 in tensor.shape for tensor in (spec.key_cache, spec.value_cache, spec.key, spec.value)):
        return False
    enforce((rule for rule in RULES if not rule.products or spec.soc in rule.products), spec)
    return True


def check_data(call: GatherCall) -> None:
    """Apply the rules on the content of seq_lens and seq_offset, which are read. Raises DataError."""
    offsets = [] if call.seq_offset is None else call.seq_offset.tolist()
    enforce(DATA_RULES, Lengths(call.seq_lens.tolist(), offsets, call.spec.is_seq_lens_cumsum))


def _null(spec: GatherSpec, name: str) -> str | None:
    return f"{name} is None; it must be a tensor" if getattr(spec, name) is None else None


def _mode(spec: GatherSpec) -> str | None:
    if spec.cache_mode in CACHE_MODES:
        return None
    return f'cache_mode is "{spec.cache_mode}"; it must be "Norm" or "PA_NZ"'


def _rank(spec: GatherSpec, name: str) -> str | None:
    tensor: TensorSpec | None = getattr(spec, name)
    ranks = {"block_tables": 2, "seq_lens": 1, "seq_offset": 1}
    rank = ranks.get(name, 4 if name.endswith("_cache") else 3 if spec.cache_mode == "Norm" else 2)
    if tensor is None or tensor.rank == rank:
        return None
    return f"{name} has shape {shape(tensor)}; with cache_mode {spec.cache_mode} it must have rank {rank}"


def _not_empty(spec: GatherSpec, name: str) -> str | None:
    tensor: TensorSpec = getattr(spec, name)
    return f"{name} has shape {shape(tensor)}; every dim must be greater than 0" if 0 in tensor.shape else None


def _family(spec: GatherSpec, name: str) -> str | None:
    family = A2_A3_DTYPES if spec.soc in A2_A3 else _950_DTYPES
    tensor: TensorSpec = getattr(spec, name)
    if tensor.dtype in family:
        return None
    return f"{name} is {tensor.dtype}; on {spec.soc or 'A2, A3 or 950'} it must be one of {', '.join(family)}"


def _same_dtype(spec: GatherSpec, name: str) -> str | None:
    tensor, cache = spec.side(name)
    return (
        None if tensor.dtype == cache.dtype else f"{name} is {tensor.dtype}; it must be {cache.dtype} as {name}_cache"
    )


def _pair(spec: GatherSpec) -> str | None:
    key, value = spec.key_cache.dtype, spec.value_cache.dtype
    if key == value or (key == "float8_e4m3fn" and value in ("float16", "bfloat16") and spec.soc not in A2_A3):
        return None
    return (
        f"value_cache is {value} and key_cache {key}; they must have one dtype, or on 950 key_cache float8_e4m3fn and "
        "value_cache float16 or bfloat16"
    )


def _index_dtype(spec: GatherSpec, name: str) -> str | None:
    tensor: TensorSpec | None = getattr(spec, name)
    if tensor is None:
        return None
    allowed = ("int32",) if spec.soc in A2_A3 else INDEX_DTYPES
    if tensor.dtype not in allowed:
        return f"{name} is {tensor.dtype}; on {spec.soc or 'A2, A3 or 950'} it must be {' or '.join(allowed)}"
    if tensor.dtype != spec.block_tables.dtype:
        return f"{name} is {tensor.dtype}; it must be {spec.block_tables.dtype} as block_tables"
    return None


def _sequences(spec: GatherSpec) -> str | None:
    batch = spec.block_tables.shape[0]
    if spec.seq_lens.shape[0] == batch + spec.is_seq_lens_cumsum:
        return None
    why = "B + 1 sums" if spec.is_seq_lens_cumsum else "B lengths"
    return (
        f"seq_lens has shape {shape(spec.seq_lens)}; with is_seq_lens_cumsum={spec.is_seq_lens_cumsum} it must hold "
        f"{why}, [{batch + spec.is_seq_lens_cumsum}], B being dim 0 of block_tables"
    )


def _offsets(spec: GatherSpec) -> str | None:
    batch = spec.block_tables.shape[0]
    if spec.seq_offset is None or spec.seq_offset.shape[0] == batch:
        return None
    return f"seq_offset has shape {shape(spec.seq_offset)}; it must be [{batch}], B being dim 0 of block_tables"


def _same_tokens(spec: GatherSpec) -> str | None:
    if spec.key.shape[0] == spec.value.shape[0]:
        return None
    return f"value has {spec.value.shape[0]} rows; it must have as many as key, {spec.key.shape[0]}"


def _same_blocks(spec: GatherSpec) -> str | None:
    axis = spec.block_axis
    size, wanted = spec.value_cache.shape[axis], spec.key_cache.shape[axis]
    if size == wanted:
        return None
    return f"value_cache has {size} places a block (dim {axis}); it must have as many as key_cache, {wanted}"


def _same_heads(spec: GatherSpec) -> str | None:
    if spec.cache_mode == "PA_NZ" or spec.key_cache.shape[2] == spec.value_cache.shape[2]:
        return None
    return f"value_cache has {spec.value_cache.shape[2]} heads; it must have key_cache's, {spec.key_cache.shape[2]}"


def _pieces(spec: GatherSpec, name: str) -> str | None:
    if spec.cache_mode == "Norm":
        return None
    cache = spec.side(name)[1]
    wanted = elements_in_32_bytes(cache.dtype)
    if cache.shape[3] == wanted:
        return None
    return f"{name}_cache has shape {shape(cache)}; its last dim must be 32 bytes, {wanted} of {cache.dtype}"


def _hidden(spec: GatherSpec, name: str) -> str | None:
    tensor, cache = spec.side(name)
    wanted = cache.shape[2:] if spec.cache_mode == "Norm" else (cache.shape[1] * cache.shape[3],)
    if tensor.shape[1:] == wanted:
        return None
    return f"{name} has shape {shape(tensor)}; with this {name}_cache it must be [T, {', '.join(map(str, wanted))}]"


def _token_bytes(spec: GatherSpec, name: str) -> str | None:
    tensor = spec.side(name)[0]
    size = prod(tensor.shape[1:]) * DTYPES[tensor.dtype].bits // 8
    if size <= MOST_TOKEN_BYTES:
        return None
    return f"{name} has {size} bytes a token; it must have at most {MOST_TOKEN_BYTES}"


def _lengths(data: Lengths) -> str | None:
    if data.is_cumsum:
        if data.seq_lens[0]:
            return f"seq_lens[0] is {data.seq_lens[0]}; sums must begin with 0"
        for place in range(1, len(data.seq_lens)):
            if data.seq_lens[place] < data.seq_lens[place - 1]:
                return (
                    f"seq_lens[{place}] is {data.seq_lens[place]} after {data.seq_lens[place - 1]}; "
                    "sums must not decrease"
                )
    return _negative("seq_lens", data.seq_lens)


def _negative(name: str, numbers: list[int]) -> str | None:
    for place, number in enumerate(numbers):
        if number < 0:
            return f"{name}[{place}] is {number}; it must not be negative"
    return None


_P, _T = InvalidParameterError, TilingError
_CACHES, _SIDES = ("key_cache", "value_cache"), ("key", "value")


def _each(
    rule: str,
    error: type[ScatterPaKvCacheError],
    condition: str,
    broken: Callable,
    names: tuple[str, ...],
) -> tuple[Rule[GatherSpec], ...]:
    return tuple(Rule(rule, error, f"{name}: {condition}", partial(broken, name=name)) for name in names)


NULL_RULES = tuple(Rule("R1", NullPointerError, f"{name} is not null", partial(_null, name=name)) for name in NAMES[:6])
RULES: tuple[Rule[GatherSpec], ...] = (
    Rule("R2", _T, "cache_mode is Norm or PA_NZ", _mode),
    *_each("R3", _P, "its rank", _rank, NAMES),
    *_each("R4", _P, "no dim of 0", _not_empty, ("block_tables", "seq_lens")),
    *_each("R5", _P, "a dtype of the product", _family, _CACHES),
    *_each("R6", _P, "its cache's dtype", _same_dtype, _SIDES),
    Rule("R7", _P, "the caches have one dtype, or float8_e4m3fn and a 16-bit float", _pair),
    *_each("R8", _P, "int32 or int64, all alike", _index_dtype, ("block_tables", "seq_lens", "seq_offset")),
    Rule("R9", _T, "seq_lens holds B lengths or B + 1 sums", _sequences),
    Rule("R10", _T, "seq_offset holds B offsets", _offsets),
    Rule("R11", _T, "key and value have as many rows", _same_tokens),
    Rule("R12", _T, "the caches agree in BS", _same_blocks),
    Rule("R13", _T, "Norm: the caches agree in N", _same_heads),
    *_each("R14", _T, "PA_NZ: the last dim of its cache is 32 bytes", _pieces, _SIDES),
    *_each("R15", _T, "a token as wide as its cache's", _hidden, _SIDES),
    *_each("R16", _T, "at most 148 KiB a token", _token_bytes, _SIDES),
)
DATA_RULES: tuple[Rule[Lengths], ...] = (
    Rule("R17", DataError, "lengths are not negative; sums begin with 0 and do not decrease", _lengths),
    Rule("R18", DataError, "offsets are not negative", lambda data: _negative("seq_offset", data.seq_offset)),
)
