"""One call, normalised: its tensors, and the hashable description of them that the rules and the plan read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from operator import index
from typing import NamedTuple

import torch
from torch import Tensor

from .dtypes import DTYPES, FLOAT4
from .errors import InvalidParameterError
from .scenarios import PRODUCTS, TENSORS

_DEFAULT_STRIDES = (1, 1)
_DEFAULT_OFFSETS = (0, 0)


class TensorSpec(NamedTuple):
    """What the rules know of one tensor.

    ``shape`` is logical: the last dim of a 4-bit tensor counts elements, twice the stored bytes. ``dtype`` is the
    logical name. ``reachable`` counts the logical elements from the tensor's first one to the end of its storage; only
    Nct reads past a shape, so it is 0 except for the key and the value of an Nct call (equal shapes, equal specs).
    """

    shape: tuple[int, ...]
    dtype: str
    reachable: int = 0

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def elements(self) -> int:
        return prod(self.shape)


class CallSpec(NamedTuple):
    """A call without its tensors: all that decides its scenario and whether it is accepted.

    None stands for an absent tensor; key-only is a pair of rank-0 specs. ``soc`` None means the union of all products.
    """

    key: TensorSpec | None
    key_cache: TensorSpec | None
    slot_mapping: TensorSpec | None
    value: TensorSpec | None
    value_cache: TensorSpec | None
    compress_lens: TensorSpec | None = None
    compress_seq_offset: TensorSpec | None = None
    seq_lens: TensorSpec | None = None
    cache_mode: str = "Norm"
    scatter_mode: str = "None"
    strides: tuple[int, ...] | None = _DEFAULT_STRIDES
    offsets: tuple[int, ...] | None = _DEFAULT_OFFSETS
    soc: str | None = None


class Arguments(NamedTuple):
    """A normalised call: the tensors as given and their description.

    Until the rules have accepted the call any tensor may be None, the first three too.
    """

    key: Tensor
    key_cache: Tensor
    slot_mapping: Tensor
    value: Tensor | None
    value_cache: Tensor | None
    compress_lens: Tensor | None
    compress_seq_offset: Tensor | None
    seq_lens: Tensor | None
    spec: CallSpec

    @property
    def key_only(self) -> bool:
        return self.value_cache is None or self.value_cache.dim() == 0

    @property
    def key_dtype(self) -> str:
        """The logical dtype of the key."""
        assert self.spec.key is not None
        return self.spec.key.dtype

    @property
    def value_dtype(self) -> str:
        """The logical dtype of the value."""
        assert self.spec.value is not None
        return self.spec.value.dtype


def normalise(
    key: Tensor | None,
    key_cache: Tensor | None,
    slot_mapping: Tensor | None,
    value: Tensor | None = None,
    value_cache: Tensor | None = None,
    *,
    compress_lens: Tensor | None = None,
    compress_seq_offset: Tensor | None = None,
    seq_lens: Tensor | None = None,
    cache_mode: str | None = "Norm",
    scatter_mode: str | None = "None",
    strides: Sequence[int] | None = _DEFAULT_STRIDES,
    offsets: Sequence[int] | None = _DEFAULT_OFFSETS,
    key_dtype: str | None = None,
    value_dtype: str | None = None,
    soc: str | None = None,
) -> Arguments:
    """Describe a call; the rules (`rules.choose`) then accept or refuse it.

    Shapes and dtypes: sections 2.1 and 2.2 of the operator's specification. None and "" for a mode mean its default.
    ``value=None`` with ``value_cache=None`` is key-only. ``key_dtype`` (for key and key_cache) and ``value_dtype`` name
    what uint8 storage holds when torch has no such dtype; 4-bit types are packed two elements a byte.

    Raises InvalidParameterError (rule "argument") for a non-tensor, tensors on different devices, an unknown ``soc``, a
    mode that is not a string, strides or offsets that are not integers, or a named dtype that the storage cannot hold.
    """
    tensors = (key, key_cache, slot_mapping, value, value_cache, compress_lens, compress_seq_offset, seq_lens)
    check_tensors(TENSORS, tensors)
    check_soc(soc)
    cache_mode = resolve_mode("cache_mode", cache_mode, "Norm")
    scatter_mode = resolve_mode("scatter_mode", scatter_mode, "None")
    if strides is not _DEFAULT_STRIDES:
        strides = _integers("strides", strides)
    if offsets is not _DEFAULT_OFFSETS:
        offsets = _integers("offsets", offsets)

    beyond = scatter_mode == "Nct"
    key_spec = key_cache_spec = value_spec = value_cache_spec = None
    if key is not None:
        key_spec = _spec(key, _logical_dtype("key", key, key_dtype), beyond)
    if key_cache is not None:
        key_cache_spec = _spec(key_cache, _cache_dtype(key_cache, key_dtype))
    if value is not None:
        value_spec = _spec(value, _logical_dtype("value", value, value_dtype), beyond)
    if value_cache is not None:
        value_cache_spec = _spec(value_cache, _cache_dtype(value_cache, value_dtype))
    if value is None and value_cache is None and key_spec is not None:
        value_spec = value_cache_spec = TensorSpec((), key_spec.dtype)
    spec = CallSpec(
        key_spec,
        key_cache_spec,
        None if slot_mapping is None else _index_spec(slot_mapping),
        value_spec,
        value_cache_spec,
        None if compress_lens is None else _index_spec(compress_lens),
        None if compress_seq_offset is None else _index_spec(compress_seq_offset),
        None if seq_lens is None else _index_spec(seq_lens),
        cache_mode,
        scatter_mode,
        strides,
        offsets,
        soc,
    )
    return Arguments(*tensors, spec)  # type: ignore[arg-type]  # None until the rules have spoken


def check_soc(soc: str | None) -> None:
    """Raises InvalidParameterError unless ``soc`` is None or a product."""
    if soc is not None and soc not in PRODUCTS:
        raise InvalidParameterError(f"soc is {soc!r}; it must be None or one of {', '.join(map(repr, PRODUCTS))}")


def check_tensors(names: Sequence[str], tensors: Sequence[Tensor | None]) -> None:
    """Raises InvalidParameterError for what is no tensor, or has no memory of its own values, and for two devices."""
    first, device = "", None
    for name, tensor in zip(names, tensors, strict=True):
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            raise InvalidParameterError(f"{name} is of type {type(tensor).__name__}; it must be a torch.Tensor")
        if tensor.layout is not torch.strided or tensor.is_nested:
            what = "nested" if tensor.is_nested else f"of layout {tensor.layout}"
            raise InvalidParameterError(f"{name} is {what}; it must be a dense tensor, of layout torch.strided")
        if tensor.is_neg():
            raise InvalidParameterError(f"{name} is a view that negates; it must be resolved, by resolve_neg()")
        if device is None:
            first, device = name, tensor.device
        elif tensor.device != device:
            raise InvalidParameterError(f"{name} is on {tensor.device}; it must be on {first}'s device, {device}")


def resolve_mode(name: str, mode: str | None, default: str) -> str:
    """``default`` for None and "". Raises InvalidParameterError for what is no string."""
    if mode is None or mode == "":
        return default
    if not isinstance(mode, str):
        raise InvalidParameterError(f"{name} is of type {type(mode).__name__}; it must be a string or None")
    return mode


def _integers(name: str, numbers: Sequence[int] | None) -> tuple[int, ...] | None:
    if numbers is None:
        return None
    try:
        return tuple(map(index, numbers))
    except TypeError:
        raise InvalidParameterError(f"{name} is {numbers!r}; it must be a sequence of integers or None") from None


@cache
def _torch_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _logical_dtype(name: str, tensor: Tensor, dtype: str | None) -> str:
    stored = _torch_name(tensor.dtype)
    if dtype is None:
        return stored
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise InvalidParameterError(f"{name}_dtype is {dtype!r}; it must be None or one of {', '.join(DTYPES)}")
    if tensor.dim() and DTYPES[dtype].storage != stored:
        raise InvalidParameterError(
            f"{name}_dtype is {dtype!r} but {name} is stored as {stored}; it must be stored as {DTYPES[dtype].storage}"
        )
    return dtype


def _cache_dtype(cache: Tensor, dtype: str | None) -> str:
    """The named dtype if the cache's storage can hold it, else the storage's own (rules D2 and D5 then refuse it)."""
    stored = _torch_name(cache.dtype)
    return dtype if isinstance(dtype, str) and dtype in DTYPES and DTYPES[dtype].storage == stored else stored


def _index_spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape), _torch_name(tensor.dtype))


def _spec(tensor: Tensor, dtype: str, beyond: bool = False) -> TensorSpec:
    shape = tuple(tensor.shape)
    reachable = 0
    if beyond:
        reachable = int(tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset())
    if dtype in FLOAT4 and shape:
        return TensorSpec((*shape[:-1], 2 * shape[-1]), dtype, 2 * reachable)
    return TensorSpec(shape, dtype, reachable)
