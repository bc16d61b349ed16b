"""The Norm kernel of this project beside the field's, both in PyPTO's cost model.

A ratio is given only for a kernel that the interpreter proved: every compiler pass PASS, the caches right bit for bit,
and as many scatters in the compiled graph as the call needs. A kernel that loses writes is fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from ..kernels.tiling import MERGED
from ..runtime import Kernel
from .cost_model import (
    HBM_BYTES_PER_US,
    ROW_PRICES,
    Cost,
    CostModelError,
    Example,
    examples_of,
    measure_all,
    record,
)

if TYPE_CHECKING:
    import torch

    from ..plans import KernelPlan

HEADS = 2
BLOCK_SIZE = 128
CACHES = 2
ELEMENT_BYTES = 2  # bfloat16
SLOT_BYTES = 4  # int32
COLUMNS = (
    *("kv_dim", "T", "tile", "E2E us", "with prologue", "HBM floor", "max(E2E, floor)", "field's", "ratio"),
    *("tasks", "chain", "batches", "edges", "scatters", "verdict", *(f"ratio at {price}" for price in ROW_PRICES)),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One call: [T, 2, kv_dim / 2] key and value in bfloat16, Norm caches of 128-slot blocks, int32 slots.

    expected: scatters that the call needs, and the field's kernel. verdict: "PASS", or what is wrong.
    """

    kv_dim: int
    tokens: int
    kernel: Kernel
    tile: int
    cost: Cost
    field: Cost
    expected: int
    verdict: str

    @property
    def name(self) -> str:
        return f"kv_dim {self.kv_dim}, T {self.tokens}"

    @property
    def floor_us(self) -> float:
        """HBM time of the bytes that must move: key, value and slots read once, the cache rows written once."""
        moved = self.tokens * (2 * CACHES * self.kv_dim * ELEMENT_BYTES + SLOT_BYTES)
        return moved / HBM_BYTES_PER_US

    @property
    def bounded_us(self) -> float:
        return max(self.cost.e2e_us, self.floor_us)

    @property
    def field_us(self) -> float:
        return max(self.field.e2e_us, self.floor_us)

    def ratio(self, price: int = 0) -> float | None:
        """How many times faster than the field's kernel, both no faster than HBM, at ``price`` cycles a row store.

        None where the kernel's verdict or its number of scatters is wrong.
        """
        if self.verdict != "PASS":
            return None
        ours, fields = (cost.repriced_us(price, self.tokens) for cost in (self.cost, self.field))
        return max(fields, self.floor_us) / max(ours, self.floor_us)

    def cells(self) -> list[str]:
        graph = self.cost.graph
        ratios = [self.ratio(price) for price in (0, *ROW_PRICES)]
        first, *priced = ["refused" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
        times = (self.cost.e2e_us, self.cost.e2e_with_prologue_us, self.floor_us, self.bounded_us, self.field_us)
        return [
            *(str(self.kv_dim), str(self.tokens), tile_name(self.kernel), *(f"{time:.2f}" for time in times), first),
            *(str(graph.tasks), str(graph.chain_depth), str(graph.batches), str(graph.edges)),
            *(f"{graph.scatters}/{self.expected}", "PASS" if self.verdict == "PASS" else "WRONG", *priced),
        ]

    def record(self) -> dict[str, object]:
        """The row as kept in the CSV file."""
        return {
            **record("field", self.cost, self.floor_us),
            "kernel": self.kernel.name,
            "config": f"[{self.tokens},{HEADS},{self.kv_dim // HEADS}] bfloat16 K+V",
            "kv_dim": self.kv_dim,
            "tokens": self.tokens,
            "blocks": _blocks(self.kv_dim, self.tokens),
            "tile": self.tile,
            "merged": dict(self.kernel.arguments)["nbuffer"] == MERGED,
            "field_e2e_us": round(self.field.e2e_us, 3),
            "field_with_prologue_us": round(self.field.e2e_with_prologue_us, 3),
            "scatters_expected": self.expected,
            "rows_on_busiest_core": self.cost.rows_on_busiest_core(self.tokens),
            "verdict": self.verdict,
            **{f"ratio_{price}": _rounded(self.ratio(price)) for price in (0, *ROW_PRICES)},
        }


def bench(calls: Sequence[tuple[int, int]], factory: str | None = None) -> list[Row]:
    """Cost and verdict of calls (kv_dim, tokens), ours and the field's side by side in two processes.

    factory: "module:function" of another kernel with the parameters of the chosen one.
    Raises CostModelError where a kernel does not compile or run, or the field's lost a write.
    """
    plans = [_Call.zeros(kv_dim, tokens, _blocks(kv_dim, tokens)).plan() for kv_dim, tokens in calls]
    if factory:
        plans = [replace(plan, kernel=replace(plan.kernel, factory=factory)) for plan in plans]
    with ThreadPoolExecutor(2) as pool:
        ours = pool.submit(measure_all, [(plan.kernel, examples_of(plan.tensors())) for plan in plans])
        fields = pool.submit(_field_costs, calls)
        rows = []
        for (kv_dim, tokens), plan, cost, field in zip(calls, plans, ours.result(), fields.result(), strict=True):
            expected = ceil(tokens / plan.tile) * CACHES
            verdict = _verdict(plan.kernel, plan.tile, kv_dim)
            if cost.graph.scatters != expected:
                verdict = f"{cost.graph.scatters} scatters are executed, {expected} are needed"
            rows.append(Row(kv_dim, tokens, plan.kernel, plan.tile, cost, field, expected, verdict))
    return rows


def _blocks(kv_dim: int, tokens: int) -> int:
    """Enough; no figure depends on them, but the memory does."""
    return max(64 if kv_dim <= 1024 else 4, ceil(tokens / BLOCK_SIZE))


class _Call(NamedTuple):
    """Arguments of one call, in the order of the public call."""

    key: torch.Tensor
    key_cache: torch.Tensor
    slot_mapping: torch.Tensor
    value: torch.Tensor
    value_cache: torch.Tensor

    @classmethod
    def zeros(cls, kv_dim: int, tokens: int, blocks: int) -> _Call:
        import torch

        head = (HEADS, kv_dim // HEADS)
        key, value = (torch.zeros(tokens, *head, dtype=torch.bfloat16) for _ in range(CACHES))
        key_cache, value_cache = (torch.zeros(blocks, BLOCK_SIZE, *head, dtype=torch.bfloat16) for _ in range(CACHES))
        return cls(key, key_cache, torch.arange(tokens, dtype=torch.int32), value, value_cache)

    def plan(self) -> KernelPlan:
        from ..api import plan
        from ..plans import KernelPlan

        planned = plan(*self, run_mode="sim")
        assert isinstance(planned, KernelPlan)
        return planned


def tile_name(kernel: Kernel) -> str:
    """Tokens a tile, with S where key and value are separate tasks and M where they are merged."""
    arguments = dict(kernel.arguments)
    return f"{arguments['tile']}{'M' if arguments['nbuffer'] == MERGED else 'S'}"


@cache
def _verdict(kernel: Kernel, tile: int, kv_dim: int) -> str:
    """Run the very kernel in sim, on a whole tile and a tail: "PASS", or the reason why its figures mean nothing."""
    import torch

    from ..errors import SimulationError

    tokens = tile + max(1, tile // 2)
    call = _Call.zeros(kv_dim, tokens, blocks=tokens // BLOCK_SIZE + 2)
    random = torch.Generator().manual_seed(tokens)
    for tensor in (call.key, call.value, call.key_cache, call.value_cache):
        tensor.view(torch.int16).random_(-(2**15), 2**15, generator=random)
    slots = torch.randperm(call.key_cache.shape[0] * BLOCK_SIZE, generator=random)[:tokens]
    call.slot_mapping.copy_(slots)
    wanted = [cache.view(torch.int16).flatten(0, 1).clone() for cache in (call.key_cache, call.value_cache)]
    for want, source in zip(wanted, (call.key, call.value), strict=True):
        want[slots] = source.view(torch.int16)
    try:
        replace(call.plan(), kernel=kernel, tile=tile).run()
    except SimulationError as error:
        return str(error).splitlines()[0]
    left = [cache.view(torch.int16).flatten(0, 1) for cache in (call.key_cache, call.value_cache)]
    same = all(torch.equal(cache, want) for cache, want in zip(left, wanted, strict=True))
    return "PASS" if same else "the caches that sim left differ from torch's index_put"


def _field_costs(calls: Sequence[tuple[int, int]]) -> list[Cost]:
    """The field's kernel on the same calls. Raises CostModelError where it lost a write."""
    from .field_baseline import field_tile

    costs = measure_all([_field_run(*call) for call in calls])
    for (kv_dim, tokens), cost in zip(calls, costs, strict=True):
        expected = ceil(tokens / field_tile(kv_dim)) * CACHES
        if cost.graph.scatters != expected:
            raise CostModelError(f"the field's kernel executes {cost.graph.scatters} scatters, {expected} are needed.")
    return costs


def _field_run(kv_dim: int, tokens: int) -> tuple[Kernel, tuple[Example, ...]]:
    head = (HEADS, kv_dim // HEADS)
    names = ("heads", "head_size", "dtype", "index_dtype")
    kernel = Kernel(
        f"{__package__}.field_baseline:field_kernel", tuple(zip(names, (*head, "bfloat16", "int32"), strict=True))
    )
    source = Example((tokens, *head), "bfloat16")
    block = Example((_blocks(kv_dim, tokens), BLOCK_SIZE, *head), "bfloat16")
    return kernel, (source, source, Example((tokens,), "int32", "arange"), block, block)


def _rounded(ratio: float | None) -> float | str:
    return "" if ratio is None else round(ratio, 6)
