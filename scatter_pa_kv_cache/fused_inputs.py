"""The inputs of the fused kernels' configs: random tensors in the kernels' order, and golden beside them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import torch
from torch import Tensor

from .configs_fused import FusedConfig
from .golden import compressor_state, glm_pre_attention, mla_prolog
from .runtime import Kernel

TILE = 8
HIDDEN, HEADS, SIZE, ROTARY, COLUMNS, TILE_BLOCKS = 256, 4, 64, 32, 8, 4
NOPE, ROPE, GROUPS, MLA_BLOCKS = 128, 32, 4, 12
ONE_ULP = (1e-4, 2.0**-7)  # of bf16


@dataclass(frozen=True)
class Output:
    """What a launch should leave in a parameter. tolerance: (atol, rtol) of |golden|.

    written: of the golden's shape or broadcast to it, where the tolerance holds; elsewhere no bit may change. exact: in
    sim no bit may differ anywhere.
    """

    name: str
    golden: Tensor
    tolerance: tuple[float, float]
    written: Tensor
    exact: bool = False

    def bound(self, run_mode: str) -> Tensor:
        """How far each element may be from golden, fp64."""
        if self.exact and run_mode == "sim":
            return torch.zeros(self.golden.shape, dtype=torch.float64)
        atol, rtol = self.tolerance
        return (atol + rtol * self.golden.double().abs().nan_to_num(posinf=0.0)) * self.written


@dataclass(frozen=True)
class Launch:
    """One kernel on CPU tensors; outputs by parameter number. In/out pairs are two tensors of one memory."""

    kernel: Kernel
    tensors: tuple[Tensor, ...]
    outputs: dict[int, Output]


Steps = Generator[Launch, dict[str, Tensor], None]  # yields a launch, is sent what it left


def _kernel(pattern: str, factory: str, **arguments: object) -> Kernel:
    return Kernel(f"{__package__}.patterns.{pattern}:{factory}", tuple(arguments.items()))


class _Random:
    def __init__(self, config: FusedConfig, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed * 1009 + sum(config.name.encode()))

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def bf16(self, *shape: int) -> Tensor:
        return self.normal(*shape).bfloat16()

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=self.generator)

    def order(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self.generator)


def _all(tensor: Tensor) -> Tensor:
    return torch.ones(1, dtype=torch.bool).expand(tensor.shape)


def _rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """[R, 1] bool: the rows of a tensor [R, W] that are written."""
    written = torch.zeros(len(tensor), 1, dtype=torch.bool)
    written[rows.long()] = True
    return written


def glm(config: FusedConfig, seed: int) -> Steps:
    """Phase 1, then phase 2 on the caches and queries that it left."""
    random = _Random(config, seed)
    tokens, sequences, size = config.tokens, config.tokens // config.together, config.block_size
    lengths = torch.tensor(config.lengths) if config.lengths else random.integers(config.together, 41, sequences)
    table, used = torch.full((sequences, COLUMNS), -1, dtype=torch.int32), 0
    blocks = sequences * COLUMNS
    order = random.order(blocks).int()
    for number, count in enumerate((-(-lengths // size)).tolist()):
        table[number, :count] = order[used : used + count]
        used += count
    position = (lengths[:, None] - torch.arange(config.together, 0, -1)).flatten()
    owner = torch.arange(tokens) // config.together
    slots = (table[owner, position // size] * size + position % size).int()
    slots[position < 0] = -1
    x, residual = random.bf16(tokens, HIDDEN), random.bf16(tokens, HIDDEN)
    columns = (HEADS + 2) * SIZE
    weight = random.integers(-128, 128, HIDDEN, columns).to(torch.int8)
    weights = glm_pre_attention.Weights(
        gamma=random.bf16(HIDDEN),
        beta=random.bf16(HIDDEN),
        q_scale=(random.uniform(HIDDEN) * 40).bfloat16(),
        q_offset=random.bf16(HIDDEN),
        weight=weight if config.quantised else random.bf16(HIDDEN, columns),
        bias=random.integers(-5000, 5000, columns).int(),
        deq_scale=random.uniform(columns) * 1e-4,
        query_gamma=random.bf16(SIZE),
        query_beta=random.bf16(SIZE),
        key_gamma=random.bf16(SIZE),
        key_beta=random.bf16(SIZE),
    )
    cos, sin = random.bf16(tokens, ROTARY // 2), random.bf16(tokens, ROTARY // 2)
    caches = [random.bf16(blocks, size, 1, SIZE) for _ in range(2)]
    golden = [cache.clone() for cache in caches]
    query, residual_out = glm_pre_attention.pre_attention(x, residual, weights, cos, sin, slots, *golden)
    rows = [cache.view(-1, SIZE) for cache in golden]
    left = yield Launch(
        _kernel(
            config.pattern,
            "pre_attention_kernel",
            hidden=HIDDEN,
            heads=HEADS,
            size=SIZE,
            rotary=ROTARY,
            tile=TILE,
            quantised=config.quantised,
        ),
        (
            *(x, residual),
            *(parameter if parameter.dim() == 2 else parameter[None] for parameter in vars(weights).values()),
            *(cos, sin, slots[None], *caches, *(cache.view(-1, SIZE) for cache in caches)),
            *(torch.zeros_like(residual_out), torch.zeros_like(query)),
        ),
        {
            18: Output("key_cache", rows[0], ONE_ULP, _rows(rows[0], slots[slots >= 0])),
            19: Output("value_cache", rows[1], ONE_ULP, _rows(rows[1], slots[slots >= 0])),
            20: Output("residual", residual_out, ONE_ULP, _all(residual_out)),
            21: Output("query", query, ONE_ULP, _all(query)),
        },
    )
    heads = left["query"].view(tokens, HEADS, SIZE)
    keys, values = (left[name].view(caches[0].shape) for name in ("key_cache", "value_cache"))
    attention = glm_pre_attention.decode_attention(heads, keys, values, table, lengths, TILE_BLOCKS).view(-1, SIZE)
    yield Launch(
        _kernel(
            config.pattern, "decode_attention_kernel", heads=HEADS, size=SIZE, block_size=size, tile_blocks=TILE_BLOCKS
        ),
        (
            *(heads.reshape(-1, SIZE), left["key_cache"], left["value_cache"]),
            *(table, lengths.int(), torch.zeros_like(attention)),
        ),
        {5: Output("attention", attention, (3e-3, 3e-3), _all(attention))},
    )


def mla(config: FusedConfig, seed: int) -> Steps:
    """One launch: random distinct slots, a group of zeros in the last token."""
    random = _Random(config, seed)
    tokens, rows = config.tokens, MLA_BLOCKS * config.block_size
    kv, gamma = random.bf16(tokens, NOPE + ROPE), random.bf16(NOPE)
    kv[-1, NOPE // GROUPS : 2 * NOPE // GROUPS] = 0
    cos, sin = random.bf16(tokens, ROPE), random.bf16(tokens, ROPE)
    slots = random.order(rows)[:tokens]
    shape = (MLA_BLOCKS, config.block_size, 1)
    caches = [random.bf16(*shape, ROPE)]
    if config.quantised:
        caches += [random.integers(-128, 128, *shape, NOPE).to(torch.int8), random.normal(*shape, GROUPS)]
    else:
        caches.append(random.bf16(*shape, NOPE))
    golden = [cache.clone() for cache in caches]
    mla_prolog.reference(kv, gamma, cos, sin, slots, *golden)
    sizes = {"nope": NOPE, "rope": ROPE, **({"groups": GROUPS} if config.quantised else {}), "tile": TILE}
    factory = "mla_prolog_kernel" if config.quantised else "mla_prolog_bf16_kernel"
    tolerances = (ONE_ULP, (1.0, 0.0), (2.5e-5, 5e-3)) if config.quantised else (ONE_ULP, ONE_ULP)
    names = ("rope_cache", "nope_cache", "scale_cache")
    flat = [cache.view(rows, -1) for cache in golden]
    yield Launch(
        _kernel(config.pattern, factory, **sizes),
        (
            *(kv, kv.view(tokens, -1, 2), gamma[None], cos, sin, slots[None]),
            *(*caches, *(cache.view(rows, -1) for cache in caches)),
        ),
        {
            6 + len(caches) + number: Output(
                names[number], cache, tolerances[number], _rows(cache, slots), exact=cache.dtype == torch.int8
            )
            for number, cache in enumerate(flat)
        },
    )


def compressor(config: FusedConfig, seed: int) -> Steps:
    """One launch: every sequence has blocks of its own, up to the one that its last new token needs."""
    random = _Random(config, seed)
    sequences, each, ratio, width = len(config.starts), config.together, config.ratio, config.width
    size = width // 2 if config.overlap else width
    columns = (max(config.starts) + each - 1) // config.block_size + 1
    blocks = sequences * columns + 1
    table = random.order(blocks)[: sequences * columns].view(sequences, columns).int()
    start = torch.tensor(config.starts, dtype=torch.int32)
    kv, score = random.normal(sequences, each, width), random.normal(sequences, each, width)
    ape, weight = random.normal(ratio, width), random.normal(size)
    rotary = min(size, 64)
    cos, sin = random.bf16(sequences, rotary), random.bf16(sequences, rotary)
    states = [random.normal(blocks, config.block_size, width) for _ in range(2)]
    golden = [state.clone() for state in states]
    windows = compressor_state.update(kv, score, ape, table, start, *golden)
    pooled, out = compressor_state.completed(windows, weight, cos, sin, table, start, *states, overlap=config.overlap)
    rows = [state.view(-1, width) for state in states]
    goldens = {
        "kv_state": golden[0].view(-1, width),
        "score_state": golden[1].view(-1, width),
        "window_kv": windows.window_kv.view(-1, width),
        "window_score": windows.window_score.view(-1, width),
        "pooled": pooled,
        "out": out,
    }
    tolerances = {"pooled": (1e-6, 1e-5), "out": ONE_ULP}
    arguments = {"width": width, "ratio": ratio, "tokens": each, "block_size": config.block_size}
    yield Launch(
        _kernel(config.pattern, "compressor_state_kernel", **arguments, overlap=config.overlap, rotary=rotary),
        (
            *(kv.view(-1, width), score.view(-1, width), ape, torch.arange(ratio, dtype=torch.int32)[None]),
            *(table, start, weight[None], cos, sin, swap_pairs(rotary)),
            *(*(row.view(row.shape) for row in rows), *rows),
            *(torch.zeros_like(goldens[name]) for name in ("window_kv", "window_score", "pooled", "out")),
        ),
        {
            12 + number: Output(
                name, tensor, tolerances.get(name, (0.0, 0.0)), windows.done[:, None], exact=name not in tolerances
            )
            for number, (name, tensor) in enumerate(goldens.items())
        },
    )


def swap_pairs(size: int) -> Tensor:
    """[size, size] bf16: a row times it has (-b, a) for each pair (a, b) of neighbours."""
    swap = torch.zeros(size, size, dtype=torch.bfloat16)
    first = torch.arange(0, size, 2)
    swap[first + 1, first], swap[first, first + 1] = -1.0, 1.0
    return swap


BUILDERS: dict[str, Callable[[FusedConfig, int], Steps]] = {
    "glm_pre_attention": glm,
    "mla_prolog": mla,
    "compressor_state": compressor,
}
