"""The tensors of a named config: a call's keyword arguments, the same for the same name, run mode and seed."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor

from .config import Config
from .dtypes import DTYPES, FLOAT4
from .golden import hifloat8

_GAP = 64  # elements between two blocks of a cache with padded blocks
_EVERY = 37  # one source element in so many is a special value
# bit patterns: -0.0 and the least subnormal; where all is copied also infinities, NaN payloads, a signalling NaN
_FINITE = {"float16": (0x8000, 0x0001), "bfloat16": (0x8000, 0x0001), "float32": (0x80000000, 0x00000001)}
_NOT_FINITE = {
    "float16": (0x7C00, 0xFC00, 0x7E01, 0xFE55, 0x7D01),
    "bfloat16": (0x7F80, 0xFF80, 0x7FC1, 0xFFD5, 0x7F81),
    "float32": (0x7F800000, 0xFF800000, 0x7FC00001, 0xFFC55555, 0x7F800001),
}


def make_inputs(config: Config, run_mode: str = "sim", seed: int = 0, device: str = "cpu") -> dict[str, Any]:
    """The keyword arguments of ``scatter_pa_kv_cache`` (without ``run_mode``) for a config.

    The caches hold random bits. Sources are normally distributed, or random over the whole range of integers, with
    -0.0, subnormals and, in scenarios that only copy, infinities and NaN payloads among them. Every index tensor
    obeys the rules V of the operator's specification. Random numbers are drawn on the CPU, then moved to ``device``.
    """
    random = torch.Generator().manual_seed(zlib.crc32(f"{config.name} {seed}".encode()))
    inputs: dict[str, Any] = {
        "cache_mode": config.row.cache_mode,
        "scatter_mode": config.scatter_mode,
        "strides": config.strides,
        "offsets": config.offsets,
    }
    sources = _sources(config, random, device)
    caches = _caches(config, run_mode, random, device)
    for side, source, cache in zip(config.sides, sources, caches, strict=True):
        inputs |= {side: source, f"{side}_cache": cache}
        dtype = config.side_dtype(side)
        if DTYPES[dtype].storage != dtype:
            inputs[f"{side}_dtype"] = dtype
    return inputs | _indexes(config, run_mode, random, device)


def _storage(dtype: str) -> torch.dtype:
    return getattr(torch, DTYPES[dtype].storage)


def _caches(config: Config, run_mode: str, random: torch.Generator, device: str) -> list[Tensor]:
    shapes = [config.stored(config.cache_shape(side, run_mode), side) for side in config.sides]
    dtypes = [_storage(config.side_dtype(side)) for side in config.sides]
    first = shapes[0]
    if config.cache_layout == "interleaved":
        both = _random_bits((first[0], len(shapes), *first[1:]), dtypes[0], random).to(device)
        return list(both.unbind(1))
    if config.cache_layout == "packed":
        widths = [shape[-1] for shape in shapes]
        both = _random_bits((*first[:-1], sum(widths)), dtypes[0], random).to(device)
        return list(both.split(widths, dim=-1))
    if config.cache_layout == "padded_blocks":
        caches = []
        for shape, dtype in zip(shapes, dtypes, strict=True):
            memory = _random_bits((shape[0], prod(shape[1:]) + _GAP), dtype, random).to(device)
            caches.append(memory[:, :-_GAP].unflatten(1, shape[1:]))
        return caches
    return [_random_bits(shape, dtype, random).to(device) for shape, dtype in zip(shapes, dtypes, strict=True)]


def _random_bits(shape: tuple[int, ...], dtype: torch.dtype, random: torch.Generator) -> Tensor:
    size = prod(shape) * dtype.itemsize
    words = torch.empty(-(-size // 8), dtype=torch.int64).random_(-(2**63), None, generator=random)
    return words.view(torch.uint8)[:size].view(dtype).view(shape)


def _sources(config: Config, random: torch.Generator, device: str) -> list[Tensor]:
    shapes = [config.stored(config.source_shape(side), side) for side in config.sides]
    names = [config.side_dtype(side) for side in config.sides]
    if config.scatter_mode == "Nct":
        return _nct_sources(config, shapes, names, random, device)
    if config.source_layout == "fused_qkv":
        tokens, heads, size = shapes[0]
        qkv = _values((tokens, 3, heads, size), names[0], config.averages, random).to(device)
        return list(qkv.unbind(1)[1:])
    if config.source_layout == "transposed":
        turned = [(heads, tokens, size) for tokens, heads, size in shapes]
        drawn = [_values(shape, name, config.averages, random) for shape, name in zip(turned, names, strict=True)]
        return [source.to(device).transpose(0, 1) for source in drawn]
    return [_values(s, n, config.averages, random).to(device) for s, n in zip(shapes, names, strict=True)]


def _nct_sources(
    config: Config, shapes: list[tuple[int, ...]], names: list[str], random: torch.Generator, device: str
) -> list[Tensor]:
    """Dense descriptors [T, H, D] at the begin of buffers that end with the last token."""
    ends = []
    for shape, stride, offset in zip(shapes, config.strides, config.offsets, strict=False):
        tokens, heads, size = shape
        ends.append(max((tokens - 1) * stride + offset + heads * size, tokens * heads * size))
    if config.source_layout == "fused_qkv":
        buffers = [_values((max(ends),), names[0], False, random).to(device)] * len(shapes)
    else:
        buffers = [_values((end,), name, False, random).to(device) for end, name in zip(ends, names, strict=True)]
    return [buffer[: prod(shape)].view(shape) for buffer, shape in zip(buffers, shapes, strict=True)]


def _values(shape: tuple[int, ...], dtype: str, finite: bool, random: torch.Generator) -> Tensor:
    """Random elements of a logical dtype; ``finite`` ones can be averaged."""
    storage = _storage(dtype)
    if dtype in FLOAT4 or (not finite and DTYPES[dtype].bits == 8) or "int" in dtype:
        return _random_bits(shape, storage, random).clone()
    values = torch.randn(shape, generator=random)
    if dtype == "hifloat8":
        return hifloat8.encode(values)
    drawn = values.to(storage)
    if dtype in _FINITE:
        codes = _FINITE[dtype] if finite else _FINITE[dtype] + _NOT_FINITE[dtype]
        unsigned = torch.uint16 if DTYPES[dtype].bits == 16 else torch.uint32
        places = torch.randperm(drawn.numel(), generator=random)[: drawn.numel() // _EVERY + 1]
        special = torch.tensor(codes, dtype=torch.int64)[torch.arange(len(places)) % len(codes)].to(unsigned)
        drawn.view(-1)[places] = special.view(storage)
    return drawn


def _indexes(config: Config, run_mode: str, random: torch.Generator, device: str) -> dict[str, Tensor]:
    slots = _task_slots(config, run_mode, random) if config.lengths else _token_slots(config, run_mode, random)
    if config.slots == "all_padding":
        slots.fill_(-1)
    elif config.slots == "padded":
        slots[[0, len(slots) // 2, -1]] = -1
    numbers = {"slot_mapping": slots}
    if config.lengths:
        tasks = torch.tensor(config.tasks(), dtype=torch.int64)
        numbers |= {"seq_lens": torch.tensor(config.lengths), "compress_lens": tasks[:, 1]}
        if config.scatter_mode != "Alibi":
            numbers["compress_seq_offset"] = tasks[:, 2]
        if config.row.key_rank == 4:
            for name in ("slot_mapping", "compress_lens"):
                numbers[name] = numbers[name].view(-1, config.heads)
    dtype = getattr(torch, config.slot_dtype)
    return {name: tensor.to(device, dtype).contiguous() for name, tensor in numbers.items()}


def _token_slots(config: Config, run_mode: str, random: torch.Generator) -> Tensor:
    if config.slots == "contiguous":
        return torch.arange(config.tokens)
    return torch.randperm(config.blocks(run_mode) * config.block_size, generator=random)[: config.tokens]


def _task_slots(config: Config, run_mode: str, random: torch.Generator) -> Tensor:
    """Where the runs of the tasks begin: disjoint, inside the cache, and as a rule in random order with gaps."""
    rows = torch.tensor(config.rows_written())
    if config.slots == "aligned":
        rows = -(-rows // config.block_size) * config.block_size
    order = torch.arange(len(rows))
    gaps = torch.zeros_like(rows)
    if config.slots not in ("aligned", "contiguous"):
        order = torch.randperm(len(rows), generator=random)
        spare = config.blocks(run_mode) * config.block_size - int(rows.sum())
        marks = torch.randint(0, spare + 1, (len(rows),), generator=random).sort().values
        gaps = marks.diff(prepend=torch.zeros(1, dtype=torch.int64))
    slots = torch.empty_like(rows)
    slots[order] = gaps.cumsum(0) + _starts(rows[order].tolist())
    return slots


def _starts(sizes: Iterable[int]) -> Tensor:
    return torch.tensor([0, *accumulate(sizes)][:-1])
