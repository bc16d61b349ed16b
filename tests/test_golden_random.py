"""golden/ against the brute force of brute_force.py on random inputs: strided tensors, all dtypes, stray slots."""

from __future__ import annotations

import random

import _checkout  # noqa: F401
import pytest
import torch
from brute_force import Layout, compressed_addresses, decode, expected, mean_code, memory, token_addresses
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from scatter_pa_kv_cache.dtypes import DTYPES, FLOAT4
from scatter_pa_kv_cache.golden import alibi, compress_4d, key_only, nct, nhsd, norm, omni, pa_nz, rope
from scatter_pa_kv_cache.golden.mean import mean

NAMES = tuple(name for name in DTYPES if name not in FLOAT4)
CODES = {8: torch.uint8, 16: torch.uint16, 32: torch.uint32}
examples = settings(max_examples=60, derandomize=True, deadline=None)
choices = st.randoms(use_true_random=False)


def codes(rng: random.Random, count: int, name: str, finite: bool) -> Tensor:
    """Random elements of a dtype, [count] in its storage dtype; without NaN, infinity and overflowing sums on wish."""
    bits, storage = DTYPES[name].bits, getattr(torch, DTYPES[name].storage)
    generator = torch.Generator().manual_seed(rng.getrandbits(31))
    if finite and name in ("float32", "bfloat16"):
        scale = 10.0 ** torch.randint(-30, 30, (1,), generator=generator)
        return (torch.randn(count, generator=generator) * scale).to(storage)
    drawn = torch.randint(0, 2**bits, (count,), generator=generator, dtype=torch.int64).tolist()
    if finite and rng.random() < 0.5:  # neighbours: their means are often ties
        drawn = [(drawn[0] & ~3) + code % 4 for code in drawn]
    if finite and "int" not in name:
        drawn = [code if abs(decode(code, name)) < 1e30 else 0 for code in drawn]
    return torch.tensor(drawn, dtype=torch.int64).to(CODES[bits]).view(storage)


def strided(rng: random.Random, shape: tuple[int, ...], name: str, finite: bool = False) -> Tensor:
    """A random tensor whose axes lie in a random order in memory, with gaps, and not at the storage's start."""
    order = list(range(len(shape)))
    if rng.random() < 0.5:
        rng.shuffle(order)
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step = step * shape[axis] + rng.choice((0, 0, 1, 3))
    origin = rng.choice((0, 2))
    return codes(rng, origin + step, name, finite).as_strided(shape, strides, origin)


def twin(tensor: Tensor) -> Tensor:
    """The same view of a copy of the storage."""
    storage = tensor.untyped_storage().clone()
    return torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def indices(rng: random.Random, numbers: list[int], *shape: int) -> Tensor:
    return torch.tensor(numbers, dtype=rng.choice((torch.int32, torch.int64))).reshape(shape or (len(numbers),))


@pytest.mark.parametrize("kind", ["norm", "nct", "pa_nz", "nhsd", "key_only", "key_only_nct"])
def test_token_scenarios(kind: str) -> None:
    @examples
    @given(choices)
    def check(rng: random.Random) -> None:
        tokens, heads, blocks, block_size = (rng.randint(1, high) for high in (6, 3, 3, 4))
        slots = [rng.randint(-2, blocks * block_size + 1) for _ in range(tokens)]
        names, rank5 = rng.choices(NAMES, k=2), rng.random() < 0.5
        if kind != "pa_nz":
            names[1] = names[0]
        sources, caches, wanted, strides, offsets = [], [], [], [], []
        for name in names[: 1 if kind.startswith("key_only") else 2]:
            lanes = 256 // DTYPES[name].bits
            size = lanes * rng.randint(1, 2) if kind == "pa_nz" else rng.randint(1, 4)
            shape = {
                "nhsd": (blocks, heads, block_size, size),
                "pa_nz": (blocks, *((heads, size // lanes) if rank5 else (heads * size // lanes,)), block_size, lanes),
            }.get(kind, (blocks, block_size, heads, size))
            stride, offset = rng.randint(1, heads * size + 3), rng.randint(0, 3)
            if kind.endswith("nct"):
                reach = (tokens - 1) * stride + offset + heads * size
                fused = codes(rng, 1 + max(reach, tokens * heads * size), name, finite=False)
                source = fused.as_strided((tokens, heads, size), (heads * size, size, 1), 1)
            else:
                source = strided(rng, (tokens, heads, size), name)
            cache = strided(rng, shape, name)
            short = kind if kind in ("nhsd", "pa_nz") else ("nct" if kind.endswith("nct") else "norm")
            addresses = token_addresses(short, Layout.of(source), Layout.of(cache), slots, stride, offset)
            sources.append(source)
            wanted.append(expected(source, cache, addresses))
            caches.append(twin(cache))
            strides.append(stride)
            offsets.append(offset)
        slot_mapping = indices(rng, slots)
        if kind == "key_only":
            key_only.reference(sources[0], caches[0], slot_mapping)
        elif kind == "key_only_nct":
            key_only.reference(
                sources[0], caches[0], slot_mapping, scatter_mode="Nct", stride=strides[0], offset=offsets[0]
            )
        elif kind == "nct":
            nct.reference(
                sources[0], caches[0], slot_mapping, sources[1], caches[1],
                strides=(strides[0], strides[1]), offsets=(offsets[0], offsets[1]),
            )  # fmt: skip
        else:
            module = {"norm": norm, "pa_nz": pa_nz, "nhsd": nhsd}[kind]
            module.reference(sources[0], caches[0], slot_mapping, sources[1], caches[1])
        assert [memory(cache) for cache in caches] == wanted

    check()


def window_of(rng: random.Random, mode: str, length: int) -> tuple[int, int]:
    """A random (window, offset) that the specification defines for a sequence of ``length`` tokens."""
    if mode == "Alibi":
        return rng.randint(0, length + 2), 0
    uncompressed = [(0, rng.randint(-1, length + 1)), (rng.randint(0, 9), -1), (rng.randint(0, 9), length)]
    if length == 0 or rng.random() < 0.2:
        return rng.choice(uncompressed)
    offset = rng.randint(0, length - 1)
    return rng.randint(1, length - offset), offset


@pytest.mark.parametrize("padded", [False, True], ids=["3-D", "4-D"])
@pytest.mark.parametrize("mode", ["Alibi", "Rope", "Omni"])
def test_compressed_scenarios(mode: str, padded: bool) -> None:
    @examples
    @given(choices)
    def check(rng: random.Random) -> None:
        batches, heads, blocks, block_size = (rng.randint(1, high) for high in (3, 3, 3, 5))
        lengths = [rng.randint(0, 5) for _ in range(batches)]
        slots = [rng.randint(-1, blocks * block_size) for _ in range(batches * heads)]
        windows, offsets = zip(*(window_of(rng, mode, lengths[t // heads]) for t in range(len(slots))), strict=True)
        name = rng.choice(NAMES)
        lead = (batches, 5 + rng.randint(0, 1)) if padded else (sum(lengths) + rng.randint(0, 1),)
        sources, caches, wanted = [], [], []
        for size in (rng.randint(1, 3), rng.randint(1, 3)):
            source = strided(rng, (*lead, heads, size), name, finite=mode == "Rope")
            cache = strided(rng, (blocks, block_size, 1, size), name)
            addresses = compressed_addresses(
                mode, Layout.of(source), Layout.of(cache), slots, windows, lengths, offsets
            )
            sources.append(source)
            wanted.append(expected(source, cache, addresses, name))
            caches.append(twin(cache))
        by_task = (batches, heads) if padded else (batches * heads,)
        lists = {"compress_lens": indices(rng, list(windows), *by_task), "seq_lens": indices(rng, lengths)}
        if mode != "Alibi":
            lists["compress_seq_offset"] = indices(rng, list(offsets))
        call = (sources[0], caches[0], indices(rng, slots, *by_task), sources[1], caches[1])
        if padded:
            compress_4d.reference(*call, scatter_mode=mode, **lists, dtype=name)
        elif mode == "Rope":
            rope.reference(*call, **lists, dtype=name)
        else:
            {"Alibi": alibi, "Omni": omni}[mode].reference(*call, **lists)
        assert [memory(cache) for cache in caches] == wanted

    check()


@pytest.mark.parametrize("name", NAMES)
def test_mean(name: str) -> None:
    @examples
    @given(choices)
    def check(rng: random.Random) -> None:
        count = rng.randint(1, 9)
        rows = codes(rng, count, name, finite=True)[:, None]
        assert memory(mean(rows, name)) == [mean_code(memory(rows), name)]

    check()
