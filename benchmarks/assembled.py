"""What ``assemble`` gains over the card's scatter where a task writes consecutive rows: Alibi's performance config.

The candidate, :mod:`~scatter_pa_kv_cache.benchmarks.assemble_runs`, passes the same gate as every kernel of the
package: its values are golden's bit for bit and every compiler pass is PASS, or it has no figure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..kernels.tiling import MERGED
from ..runtime import Kernel
from .beside_field import tile_name
from .cost_model import ROW_PRICES, Cost, examples_of, measure_all, record
from .scenarios import Row as ScenarioRow
from .scenarios import config_of, needs_of, plan_of

if TYPE_CHECKING:
    import torch

    from ..plans import KernelPlan

CONFIG = "alibi_performance_p0"
COLUMNS = (
    *("kernel", "tile", "E2E us", *(f"at {price}" for price in ROW_PRICES), "HBM floor", "tasks", "chain", "loads"),
    *("scatters", "stores", "verdict", "gain"),
)
_SIDES = 2
_SCALARS = 4  # slot_mapping, compress_lens, seq_lens, seq_starts


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel on the config. gain: times faster than the first, None for itself."""

    kernel: Kernel
    cost: Cost
    floor_us: float
    verdict: str
    gain: float | None

    @property
    def name(self) -> str:
        return self.kernel.name

    def cells(self) -> list[str]:
        graph = self.cost.graph
        prices = [self.cost.repriced_us(price, 2**31) for price in ROW_PRICES]
        times = (self.cost.e2e_us, *prices, self.floor_us)
        gain = "" if self.gain is None else f"{self.gain:.2f}"
        counts = (graph.tasks, graph.chain_depth, graph.operations.get("COPY_IN", 0), graph.scatters)
        return [
            *(self.kernel.name, tile_name(self.kernel), *(f"{time:.2f}" for time in times), *map(str, counts)),
            *(str(graph.operations.get("COPY_OUT", 0)), "PASS" if self.verdict == "PASS" else "WRONG", gain),
        ]

    def record(self) -> dict[str, object]:
        """The row as kept in the CSV file."""
        arguments = dict(self.kernel.arguments)
        return {
            **record("assemble", self.cost, self.floor_us),
            "kernel": self.kernel.name,
            "config": CONFIG,
            "tile": arguments["tile"],
            "merged": arguments["nbuffer"] == MERGED,
            "verdict": self.verdict,
        }


def bench() -> list[Row]:
    """The package's kernel, then the candidate. Raises CostModelError where one does not run."""
    config = config_of(CONFIG)
    plan = plan_of(config)
    arguments = {name: value for name, value in plan.kernel.arguments if name != "index_dtype"}
    other = Kernel(f"{__package__}.assemble_runs:assemble_runs_kernel", tuple(arguments.items()))
    tensors = _tensors(plan)
    scatter, assemble = measure_all(
        [(plan.kernel, examples_of(plan.tensors())), (other, examples_of(tensors))],
    )
    needs = needs_of(config, plan)
    floor = ScenarioRow(config, plan, scatter, needs, "").floor_us
    return [
        Row(plan.kernel, scatter, floor, needs.differences(scatter) or "PASS", None),
        Row(other, assemble, floor, _verdict(other, plan, tensors), scatter.e2e_us / assemble.e2e_us),
    ]


def _tensors(plan: KernelPlan) -> tuple[torch.Tensor, ...]:
    """The alibi kernel's tensors without slot rows and caches as read."""
    tensors = plan.tensors()
    return (*tensors[: _SCALARS + _SIDES], *tensors[-_SIDES:])


def _verdict(kernel: Kernel, plan: KernelPlan, tensors: tuple[torch.Tensor, ...]) -> str:
    """Values and every compiler pass of the kernel against golden."""
    import torch

    from ..errors import SimulationError
    from ..gate import launch
    from ..reference import reference

    caches = [cache.clone() for cache in plan.caches]
    slots = plan.arguments.slot_mapping
    reference(plan, torch.arange(len(slots)), slots, caches)
    rows = tensors[-_SIDES:]
    goldens = {len(tensors) - _SIDES + side: cache.view(rows[side].shape) for side, cache in enumerate(caches)}
    try:
        for stage in ("values", "verdicts"):
            launch(kernel, stage, tensors, goldens)
    except SimulationError as error:
        return str(error).splitlines()[0]
    return "PASS"
