"""The kernel of each scenario in PyPTO's cost model, and what its compiled graph must hold, told from the call alone.

Tiles of copies wait for nothing. A Rope window longer than a tile is a chain: its tiles add to one sum, so each waits
for the one before, and the last writes the mean. No task waits for one of another (batch, head).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from operator import mul
from typing import TYPE_CHECKING

from ..config import Config
from ..configs import CONFIGS
from ..kernels.tiling import MERGED
from . import beside_field
from .cost_model import HBM_BYTES_PER_US, Cost, examples_of, measure_all, record

if TYPE_CHECKING:
    from ..plans import KernelPlan

# one for each kernel and, of compress_4d, for each mode; Norm stands beside the field's kernel
NAMES = (
    *("pa_nz", "nct", "compress_4d_rope", "compress_4d_omni", "compress_4d_alibi"),
    *("alibi", "rope", "omni", "key_only", "nhsd"),
)
COLUMNS = (
    *("config", "tile", "E2E us", "with prologue", "HBM floor", "max(E2E, floor)", "ratio", "tasks", "chain"),
    *("edges", "scatters", "source loads", "rows read", "rows written", "verdict"),
)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a call needs at its tile, key and value together.

    tasks, scatters: on the cores. edges: tasks that wait for another, all within a Rope window. chain_depth: tasks of
    the longest window, 1 without. source_loads: tiles of key and value that are loaded, each row once.
    rows_read, rows_written: cache rows as they stand in the source, and in the cache. bytes_moved: of all of these.
    """

    tasks: int
    scatters: int
    edges: int
    chain_depth: int
    source_loads: int
    rows_read: int
    rows_written: int
    bytes_moved: int

    def differences(self, cost: Cost) -> str:
        """What the compiled graph has other than it should, "" if nothing.

        Where the runtime cuts a window's tiles into two batches of iterations, which wait for each other anyhow, an
        edge less is right.
        """
        graph = cost.graph
        edges, chain_depth = self.edges, self.chain_depth
        if graph.batches > 1:
            edges, chain_depth = min(edges, graph.edges), min(chain_depth, graph.chain_depth)
        loads = sum(graph.loads.get(name, 0) for name in ("key", "value"))
        found = (graph.tasks, graph.scatters, graph.edges, graph.chain_depth, loads)
        wanted = (self.tasks, self.scatters, edges, chain_depth, self.source_loads)
        words = ("tasks", "scatters", "edges", "tasks in a chain", "source loads")
        return ", ".join(
            f"{one} {word} instead of {other}"
            for word, one, other in zip(words, found, wanted, strict=True)
            if one != other
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One config. verdict: "PASS" where sim proved the very kernel and its graph holds what it needs."""

    config: Config
    plan: KernelPlan
    cost: Cost
    needs: Needs
    verdict: str

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def floor_us(self) -> float:
        """HBM time of the bytes that must move: source rows and index tensors read, cache rows written, once each."""
        arguments = self.plan.arguments
        given = (
            arguments.slot_mapping,
            arguments.compress_lens,
            arguments.compress_seq_offset,
            arguments.seq_lens,
        )
        indexes = sum(tensor.numel() * tensor.element_size() for tensor in given if tensor is not None)
        return (indexes + self.needs.bytes_moved) / HBM_BYTES_PER_US

    def cells(self) -> list[str]:
        graph, needs = self.cost.graph, self.needs
        loads = graph.loads.get("key", 0) + graph.loads.get("value", 0)
        times = (self.cost.e2e_us, self.cost.e2e_with_prologue_us, self.floor_us, max(self.cost.e2e_us, self.floor_us))
        return [
            *(self.config.name, beside_field.tile_name(self.plan.kernel), *(f"{time:.2f}" for time in times), "-"),
            *(str(graph.tasks), str(graph.chain_depth), str(graph.edges), f"{graph.scatters}/{needs.scatters}"),
            *(f"{loads}/{needs.source_loads}", str(needs.rows_read), str(needs.rows_written)),
            "PASS" if self.verdict == "PASS" else "WRONG",
        ]

    def record(self) -> dict[str, object]:
        """The row as kept in the CSV file."""
        graph, needs = self.cost.graph, self.needs
        arguments = dict(self.plan.kernel.arguments)
        return {
            **record("scenarios", self.cost, self.floor_us),
            "kernel": self.plan.kernel.name,
            "config": self.config.name,
            "tokens": self.plan.arguments.key.shape[:-2].numel(),
            "blocks": self.config.sim_blocks,
            "tile": arguments["tile"],
            "merged": arguments["nbuffer"] == MERGED,
            "scatters_expected": needs.scatters,
            "source_loads": graph.loads.get("key", 0) + graph.loads.get("value", 0),
            "source_loads_expected": needs.source_loads,
            "rows_read": needs.rows_read,
            "rows_written": needs.rows_written,
            "verdict": self.verdict,
        }


def config_of(name: str) -> Config:
    """The config of that name. Raises KeyError."""
    return {config.name: config for config in CONFIGS}[name]


def plan_of(config: Config) -> KernelPlan:
    """The plan that sim runs for a config, on its inputs."""
    from ..api import plan
    from ..inputs import make_inputs
    from ..plans import KernelPlan

    planned = plan(**make_inputs(config), run_mode="sim")
    assert isinstance(planned, KernelPlan)
    return planned


def needs_of(config: Config, plan: KernelPlan) -> Needs:
    """Raises ValueError for a config that skips tasks: its counts depend on the slots too."""
    arguments = dict(plan.kernel.arguments)
    tile, sides = arguments["tile"], len(plan.sides)
    tasks_a_tile = 1 if arguments["nbuffer"] == MERGED else sides
    rows_a_token = [side.layout.groups for side in plan.sides]
    row_bytes = [side.side.row * side.cache.element_size() for side in plan.sides]
    token_bytes = sum(map(mul, rows_a_token, row_bytes))
    if not config.lengths:
        parts = rows_a_token[0] // plan.sides[0].side.groups
        tiles = ceil(config.tokens * parts / tile)
        rows = config.tokens * sum(rows_a_token)
        return Needs(
            tasks=tiles * tasks_a_tile,
            scatters=tiles * sides,
            edges=0,
            chain_depth=min(tiles, 1),
            source_loads=tiles * sides,
            rows_read=rows,
            rows_written=rows,
            bytes_moved=2 * config.tokens * token_bytes,
        )
    if config.slots in ("padded", "all_padding") or max(rows_a_token) > 1:
        raise ValueError(f"{config.name} skips tasks or cuts rows: what it needs is not counted here.")
    runs, windows = _runs_and_windows(config)
    copies = sum(ceil(run / tile) for run in runs)
    chains = [ceil(window / tile) for window in windows]
    read, written = sum(runs) + sum(windows), sum(runs) + len(windows)
    return Needs(
        tasks=copies * tasks_a_tile + sum(chains) * sides,
        scatters=(copies + len(windows)) * sides,
        edges=(sum(chains) - len(chains)) * sides,
        chain_depth=max([min(copies, 1), *chains]),
        source_loads=(copies + sum(chains)) * sides,
        rows_read=read * sides,
        rows_written=written * sides,
        bytes_moved=(read + written) * token_bytes,
    )


def _runs_and_windows(config: Config) -> tuple[list[int], list[int]]:
    """Lengths of the runs that a config's tasks copy, and of the windows that they average."""
    runs, windows = [], []
    for length, window, offset in config.tasks():
        if config.scatter_mode == "Alibi":
            runs.append(min(window, length))
        elif not window or offset in (-1, length):
            runs.append(length)
        else:
            runs += [offset, length - offset - window]
            windows += [window] if config.averages else []
    return runs, windows


def bench(names: Sequence[str] = NAMES) -> list[Row]:
    """Cost, needs and verdict of the performance configs of ``names``. Raises CostModelError where one does not run."""
    from ..runner import PASS, run_config

    configs = [config_of(f"{name}_performance_p0") for name in names]
    plans = [plan_of(config) for config in configs]
    costs = measure_all([(plan.kernel, examples_of(plan.tensors())) for plan in plans])
    rows = []
    for config, plan, cost in zip(configs, plans, costs, strict=True):
        needs = needs_of(config, plan)
        outcome = run_config(config, "sim", seed=0)
        verdict = "PASS" if outcome.marker == PASS else outcome.details
        rows.append(Row(config, plan, cost, needs, needs.differences(cost) or verdict))
    return rows
