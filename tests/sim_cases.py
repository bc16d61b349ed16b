"""Random valid calls of every scenario, small enough for sim."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

Case = dict[str, Any]

HALVES = (torch.float16, torch.bfloat16)
COPIED = (
    *HALVES,
    torch.float32,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)
A2_A3 = (*HALVES, torch.int8)


def noise(shape: tuple[int, ...], dtype: torch.dtype, random: torch.Generator) -> torch.Tensor:
    """Random bits: NaN payloads, infinities and -0.0 among them."""
    size = torch.Size(shape).numel() * dtype.itemsize
    return torch.randint(0, 256, (size,), generator=random, dtype=torch.uint8).view(dtype).view(shape)


@st.composite
def generators(draw: st.DrawFn) -> torch.Generator:
    return torch.Generator().manual_seed(draw(st.integers(0, 2**31)))


def padding(dtype: torch.dtype) -> st.SearchStrategy[int]:
    """A negative slot of a dtype; of 64 bits also those whose lower 32 are no negative number."""
    lowest = torch.iinfo(dtype).min
    return st.sampled_from([-1, lowest, lowest + 3, max(lowest, -(2**32)), max(lowest, 5 - 2**33)])


@st.composite
def slots(draw: st.DrawFn, tokens: int, capacity: int, random: torch.Generator) -> torch.Tensor:
    """[T] slots without repeats, some of them padding, of either dtype and any stride."""
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    chosen = torch.randperm(capacity, generator=random)[:tokens].to(dtype)
    for token in draw(st.sets(st.integers(0, max(tokens - 1, 0)), max_size=3)):
        if token < tokens:
            chosen[token] = draw(padding(dtype))
    return chosen.repeat_interleave(2)[::2] if draw(st.booleans()) else chosen


@st.composite
def source(draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype, random: torch.Generator) -> torch.Tensor:
    """Contiguous, one of three of a fused matrix, or transposed."""
    form = draw(st.sampled_from(["dense", "fused", "transposed"]))
    if form == "dense":
        return noise(shape, dtype, random)
    if form == "fused":
        return noise((shape[0], 3, *shape[1:]), dtype, random).unbind(1)[draw(st.integers(0, 2))]
    return noise((shape[1], shape[0], *shape[2:]), dtype, random).transpose(0, 1)


@st.composite
def cache_pair(
    draw: st.DrawFn,
    key: tuple[int, ...],
    value: tuple[int, ...],
    dtypes: tuple[torch.dtype, torch.dtype],
    random: torch.Generator,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Dense, with padded blocks, with blocks of another layer between, turned inside out, or both in one tensor."""
    forms = ["dense", "padded", "layered", "turned"] + (
        ["interleaved"] if key == value and dtypes[0] == dtypes[1] else []
    )
    form = draw(st.sampled_from(forms))
    if form == "interleaved":
        both = noise((key[0], 2, *key[1:]), dtypes[0], random)
        return both[:, 0], both[:, 1]
    pair = []
    for shape, dtype in zip((key, value), dtypes, strict=True):
        if form == "dense":
            pair.append(noise(shape, dtype, random))
        elif form == "turned" and not pair:  # blocks inside slots, of the first cache alone
            pair.append(noise((shape[1], shape[0], *shape[2:]), dtype, random).transpose(0, 1))
        elif form == "turned":
            pair.append(noise(shape, dtype, random))
        elif form == "layered":
            pair.append(noise((shape[0], 3, *shape[1:]), dtype, random)[:, 1])
        else:
            block = torch.Size(shape[1:]).numel()
            memory = noise((shape[0], block + 2 * shape[-1]), dtype, random)
            pair.append(memory[:, :block].unflatten(1, shape[1:]))
    return pair[0], pair[1]


@st.composite
def token_calls(draw: st.DrawFn, kind: str) -> Case:
    """kind: norm, nct, pa_nz, nhsd or key_only."""
    random = draw(generators())
    heads, block_size = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 5, 7, 16]))
    blocks = draw(st.integers(1, 5))
    capacity = blocks * block_size
    tokens = draw(st.integers(1, min(capacity, 20)))
    case: Case = {"slot_mapping": draw(slots(tokens, capacity, random))}
    dtype = draw(st.sampled_from(COPIED if kind in ("norm", "nct", "pa_nz") else A2_A3))
    value_dtype = draw(st.sampled_from(COPIED)) if kind == "pa_nz" else dtype
    unit = {"pa_nz": 32 // dtype.itemsize, "nhsd": 32 // dtype.itemsize}.get(kind, 1)
    value_unit = 32 // value_dtype.itemsize if kind == "pa_nz" else unit
    head_size, value_size = unit * draw(st.integers(1, 3)), value_unit * draw(st.integers(1, 3))
    if unit == 1:
        head_size, value_size = draw(st.sampled_from([(4, 4), (3, 5), (16, 8), (24, 24)]))
    shapes = []
    for size, width in ((head_size, unit), (value_size, value_unit)):
        if kind == "pa_nz":
            shapes.append((blocks, heads * size // width, block_size, width))
        elif kind == "nhsd":
            shapes.append((blocks, heads, block_size, size))
        else:
            shapes.append((blocks, block_size, heads, size))
    if kind == "pa_nz" and draw(st.booleans()):
        shapes = [(blocks, heads, shape[1] // heads, block_size, shape[3]) for shape in shapes]
    caches = draw(cache_pair(shapes[0], shapes[1], (dtype, value_dtype), random))
    names = ("key",) if kind == "key_only" else ("key", "value")
    strides, offsets = [], []
    nct = kind == "nct" or (kind == "key_only" and draw(st.booleans()))
    for name, size, of, cache in zip(names, (head_size, value_size), (dtype, value_dtype), caches, strict=False):
        case[f"{name}_cache"] = cache
        if nct:
            row = heads * size
            stride, offset = draw(st.integers(1, 2 * row + 1)), draw(st.integers(0, row + 2))
            memory = noise(((tokens - 1) * stride + offset + row + tokens * row,), of, random)
            case[name] = memory[: tokens * row].view(tokens, heads, size)
            strides.append(stride)
            offsets.append(offset)
        else:
            case[name] = draw(source((tokens, heads, size), of, random))
    if nct:
        case |= {"scatter_mode": "Nct", "strides": (*strides, 1)[:2], "offsets": (*offsets, 1)[:2]}
    if kind == "pa_nz":
        case["cache_mode"] = "PA_NZ"
    if kind == "nhsd":
        case["scatter_mode"] = "NHSD"
    return case


# heads, head sizes of key and value, dtype: few, because each is a kernel whose passes sim verifies
TASK_SHAPES = {
    "Rope": [
        (1, 4, 4, torch.float16),
        (2, 9, 8, torch.bfloat16),
        (3, 16, 16, torch.float32),
        (2, 4, 8, torch.int8),
        (2, 1, 16, torch.uint16),
    ],
    "copies": [
        (1, 4, 4, torch.bfloat16),
        (2, 9, 8, torch.float8_e4m3fn),
        (3, 16, 16, torch.uint32),
        (2, 1, 8, torch.int8),
        (2, 16, 8, torch.uint16),
    ],
}


@st.composite
def task_calls(draw: st.DrawFn, mode: str, rank: int) -> Case:
    """mode: Rope, Omni or Alibi; rank of the key: 3 or 4."""
    random = draw(generators())
    batches = draw(st.integers(1, 3))
    heads, head_size, value_size, dtype = draw(st.sampled_from(TASK_SHAPES["Rope" if mode == "Rope" else "copies"]))
    lengths = draw(st.lists(st.integers(0, 24), min_size=batches, max_size=batches).filter(any))
    block_size = draw(st.sampled_from([1, 3, 8]))
    windows, offsets, rows = [], [], []
    for length in (length for length in lengths for _ in range(heads)):
        window = draw(st.integers(0, length))
        offset = draw(st.one_of(st.just(-1), st.just(length - window), st.integers(0, length - window)))
        windows.append(window)
        offsets.append(offset)
        whole = offset in (-1, length) or window == 0
        rows.append(window if mode == "Alibi" else length if whole else length - window + (mode == "Rope"))
    gaps = draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows)))
    order = torch.randperm(len(rows), generator=random).tolist()
    starts, end = [0] * len(rows), 0
    for task in order:
        starts[task] = end + gaps[task]
        end = starts[task] + rows[task]
    index = draw(st.sampled_from([torch.int32, torch.int64]))
    for task in draw(st.sets(st.integers(0, len(rows) - 1), max_size=1)):
        starts[task] = draw(padding(index))
    # capacity must reach the token count too (rule F5), and a task that writes nothing still names a slot
    blocks = -(-max(end + 1, sum(lengths)) // block_size) + draw(st.integers(0, 1))
    longest = max(lengths) + draw(st.integers(0, 2))
    shape: tuple[int, ...] = (batches, longest, heads) if rank == 4 else (sum(lengths), heads)
    tasks = (batches, heads) if rank == 4 else (batches * heads,)

    def values(size: int) -> torch.Tensor:
        if mode == "Rope" and dtype.is_floating_point:
            return torch.randn(*shape, size, generator=random).to(dtype)
        return noise((*shape, size), dtype, random)

    caches = draw(
        cache_pair((blocks, block_size, 1, head_size), (blocks, block_size, 1, value_size), (dtype, dtype), random)
    )
    case = {
        "key": values(head_size),
        "value": values(value_size),
        "key_cache": caches[0],
        "value_cache": caches[1],
        "slot_mapping": torch.tensor(starts, dtype=index).view(tasks),
        "compress_lens": torch.tensor(windows, dtype=index).view(tasks),
        "seq_lens": torch.tensor(lengths, dtype=index),
        "scatter_mode": mode,
    }
    if mode != "Alibi":
        case["compress_seq_offset"] = torch.tensor(offsets, dtype=index)
    return case


def twin(case: Case) -> Case:
    """The same call on copies of all its memory: tensors that share a storage share one here too."""
    storages: dict[int, torch.UntypedStorage] = {}
    copied = dict(case)
    for name, given in case.items():
        if isinstance(given, torch.Tensor):
            storage = given.untyped_storage()
            clone = storages.setdefault(storage.data_ptr(), storage.clone())
            empty = torch.empty(0, dtype=given.dtype)
            copied[name] = empty.set_(clone, given.storage_offset(), given.shape, given.stride())
    return copied


def memory(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of a tensor's storage: its elements, the gaps between them and whatever shares it."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
