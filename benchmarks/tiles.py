"""The tiles that PA_NZ and NHSD may get, in PyPTO's cost model: key and value [T, 2, 256] bfloat16, 128-slot blocks.

A PA_NZ token is 32 rows of 32 bytes for each of key and value, an NHSD token two of 512. What the model cannot see
weighs more here than anywhere: it charges no row store, and of a tile no row beyond the 256th. So a price for each row
store is added; a device decides.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

from ..kernels.tiling import MERGED, choose_tiling, tilings
from ..runtime import Kernel
from .beside_field import tile_name
from .cost_model import HBM_BYTES_PER_US, ROW_PRICES, Cost, examples_of, measure_all, record

if TYPE_CHECKING:
    from ..plans import KernelPlan

TOKENS = (1, 32, 2633)
HEADS, HEAD_SIZE, BLOCK_SIZE = 2, 256, 128
CACHES = {"PA_NZ": (32, BLOCK_SIZE, 16), "NHSD": (HEADS, BLOCK_SIZE, HEAD_SIZE)}
COLUMNS = (
    *("cache", "T", "tile", "E2E us", *(f"at {price}" for price in ROW_PRICES), "HBM floor"),
    *("tasks", "chain", "scatters", "row stores", "taken"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One tile of one call. taken: the package's rule takes it."""

    cache: str
    tokens: int
    kernel: Kernel
    groups: int
    cost: Cost
    expected: int
    taken: bool

    @property
    def floor_us(self) -> float:
        """HBM time of the bytes that must move: key, value and slots read once, the cache rows written once."""
        return self.tokens * (8 * HEADS * HEAD_SIZE + 4) / HBM_BYTES_PER_US

    @property
    def name(self) -> str:
        return f"{self.cache}, T {self.tokens}, tile {tile_name(self.kernel)}"

    @property
    def verdict(self) -> str:
        """Of the graph alone: sim proves the tile that is taken wherever the kernel is used."""
        found = self.cost.graph.scatters
        return "PASS" if found == self.expected else f"{found} scatters are executed, {self.expected} are needed"

    def priced_us(self, price: int) -> float:
        return max(self.floor_us, self.cost.repriced_us(price, self.tokens * self.groups))

    def cells(self) -> list[str]:
        graph = self.cost.graph
        times = (self.cost.e2e_us, *map(self.priced_us, ROW_PRICES), self.floor_us)
        return [
            *(self.cache, str(self.tokens), tile_name(self.kernel), *(f"{time:.2f}" for time in times)),
            *(str(graph.tasks), str(graph.chain_depth), f"{graph.scatters}/{self.expected}"),
            *(str(2 * self.tokens * self.groups), "taken" if self.taken else ""),
        ]

    def record(self) -> dict[str, object]:
        """The row as kept in the CSV file."""
        arguments = dict(self.kernel.arguments)
        return {
            **record("tiles", self.cost, self.floor_us),
            "kernel": self.kernel.name,
            "config": f"{self.cache} [{self.tokens},{HEADS},{HEAD_SIZE}] bfloat16 K+V",
            "kv_dim": HEADS * HEAD_SIZE,
            "tokens": self.tokens,
            "tile": arguments["tile"],
            "merged": arguments["nbuffer"] == MERGED,
            "scatters_expected": self.expected,
            "rows_written": 2 * self.tokens * self.groups,
            **{f"repriced_{price}_us": round(self.priced_us(price), 3) for price in ROW_PRICES},
        }


def bench() -> list[Row]:
    """Every tile that the rule knows, at each number of tokens. Raises CostModelError where one does not run."""
    with ThreadPoolExecutor(2) as pool:
        calls = [(cache, tokens) for cache in CACHES for tokens in TOKENS]
        return [row for rows in pool.map(_rows, *zip(*calls, strict=True)) for row in rows]


def _rows(cache: str, tokens: int) -> list[Row]:
    plan = plan_of(cache, tokens)
    side = plan.sides[0].side
    given = {"row_bytes": 2 * side.row, "index_bytes": 4, "groups": side.groups}
    taken, options = choose_tiling(tokens, **given), tilings(**given)
    kernels = [_with_tile(plan.kernel, *option) for option in options]
    costs = measure_all([(kernel, examples_of(plan.tensors())) for kernel in kernels])
    return [
        Row(cache, tokens, kernel, side.groups, cost, 2 * ceil(tokens / option.tokens), option == taken)
        for kernel, cost, option in zip(kernels, costs, options, strict=True)
    ]


def plan_of(cache: str, tokens: int) -> KernelPlan:
    """The plan of a call on zeros."""
    import torch

    from ..api import plan
    from ..plans import KernelPlan

    blocks = max(4, ceil(tokens / BLOCK_SIZE))
    key, value = (torch.zeros(tokens, HEADS, HEAD_SIZE, dtype=torch.bfloat16) for _ in range(2))
    caches = [torch.zeros(blocks, *CACHES[cache], dtype=torch.bfloat16) for _ in range(2)]
    cache_mode, scatter_mode = ("PA_NZ", "None") if cache == "PA_NZ" else ("Norm", "NHSD")
    slots = torch.arange(tokens, dtype=torch.int32)
    planned = plan(
        *(key, caches[0], slots, value, caches[1]), cache_mode=cache_mode, scatter_mode=scatter_mode, run_mode="sim"
    )
    assert isinstance(planned, KernelPlan)
    return planned


def _with_tile(kernel: Kernel, tokens: int, nbuffer: tuple[tuple[int, int], ...]) -> Kernel:
    return replace(kernel, arguments=tuple({**dict(kernel.arguments), "tile": tokens, "nbuffer": nbuffer}.items()))
