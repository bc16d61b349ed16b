"""Kernels in PyPTO's cost model, in a process of their own.

The cost model leaks, prints, writes into the working directory and starts drawing scripts. The runs get a fresh
process, temporary folders and a copy of PyPTO's configuration without the drawings; nothing of it is left.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ..runtime import Kernel
from . import results
from .task_graph import CYCLES_PER_US, Cost, CostModelError, TaskGraph, read_cost

if TYPE_CHECKING:
    import torch

__all__ = [
    "CYCLES_PER_US",
    "Cost",
    "CostModelError",
    "Example",
    "TaskGraph",
    "examples_of",
    "measure",
    "measure_all",
    "record",
]

LABEL = "PyPTO cost model, not measured"
DEVICE = "PyPTO cost model, Ascend 910B2 (24 cube and 48 vector cores)"
HBM_BYTES_PER_US = 1.6e6
ROW_PRICES = (12, 60, 170)  # cycles a row store, which the cost model leaves free
TIMEOUT = 600  # seconds of one process
_BOOT = "from scatter_pa_kv_cache.benchmarks.cost_model import _child; _child()"
# what would move PyPTO's files or look for a device
_HOSTILE = ("TILE_FWK_OUTPUT_DIR", "TILEFWK_CONFIG_PATH", "ASCEND_HOME_PATH", "PYTHONSTARTUP", "PYTHONINSPECT")


@dataclass(frozen=True, slots=True)
class Example:
    """A tensor parameter as the cost model needs it: no values, but for those that a kernel reads as scalars.

    dtype: a name in torch. fill: "zeros", "arange" (the element's number), or the elements themselves.
    memory_of: number of an earlier parameter on whose memory this one is, as the in/out pair of a cache.
    """

    shape: tuple[int, ...]
    dtype: str
    fill: str | tuple[int, ...] = "zeros"
    memory_of: int | None = None


def examples_of(tensors: Sequence[torch.Tensor]) -> tuple[Example, ...]:
    """Examples of the shapes, dtypes and shared memory of a kernel's tensors.

    One-dimensional int32 tensors, which a kernel may read as scalars, keep their elements; all else is zeros.
    """
    first: dict[tuple[int, int], int] = {}
    examples = []
    for number, tensor in enumerate(tensors):
        owner = first.setdefault((tensor.data_ptr(), tensor.numel()), number) if tensor.numel() else number
        dtype = str(tensor.dtype).removeprefix("torch.")
        if owner != number:
            examples.append(Example(tuple(tensor.shape), dtype, memory_of=owner))
        elif tensor.dim() == 1 and dtype == "int32":
            examples.append(Example(tuple(tensor.shape), dtype, tuple(tensor.tolist())))
        else:
            examples.append(Example(tuple(tensor.shape), dtype))
    return tuple(examples)


def measure(kernel: Kernel, examples: Sequence[Example], timeout: float = TIMEOUT) -> Cost:
    """Compile ``kernel`` and run it on ``examples`` in the cost model.

    Raises CostModelError, with PyPTO's last words, where it does not compile or run, or takes longer than ``timeout``
    seconds.
    """
    return measure_all([(kernel, examples)], timeout)[0]


def measure_all(runs: Sequence[tuple[Kernel, Sequence[Example]]], timeout: float = TIMEOUT) -> list[Cost]:
    """Several runs in one process, one after another: what the start of a process costs is paid once.

    timeout: seconds of all of them. Raises CostModelError, naming the kernel, with the first that fails.
    """
    with tempfile.TemporaryDirectory(prefix="scatter-pa-cost-") as name:
        folder = Path(name)
        (folder / "config.json").write_text(_quiet_config())
        code: int | str
        with open(folder / "log", "wb") as log:
            try:
                code = subprocess.run(
                    [sys.executable, "-c", _BOOT],
                    input=pickle.dumps([(kernel, tuple(examples)) for kernel, examples in runs]),
                    cwd=folder,
                    env=_environment(folder / "config.json"),
                    stdout=log,
                    stderr=log,
                    check=False,
                    timeout=timeout,
                ).returncode
            except subprocess.TimeoutExpired:
                code = f"none, for it took longer than {timeout} s,"
        costs = []
        for number, (kernel, _) in enumerate(runs):
            calls = list((folder / str(number) / "output").glob("*/program.json"))
            last = not (folder / str(number + 1)).exists()
            if len(calls) != 1 or (code and last):
                words = "\n".join((folder / "log").read_text(errors="replace").strip().splitlines()[-8:])
                raise CostModelError(
                    f"the cost model ended with exit code {code} and {len(calls)} results on kernel {kernel.name}. "
                    f"Its last words:\n{words}"
                )
            costs.append(read_cost(calls[0].parent))
        return costs


def record(bench: str, cost: Cost, floor_us: float) -> dict[str, object]:
    """The columns of the CSV file that any row of the cost model has. floor_us: HBM time of what must move."""
    graph = cost.graph
    return {
        **results.environment(DEVICE),
        "bench": bench,
        "label": LABEL,
        "e2e_us": round(cost.e2e_us, 3),
        "e2e_with_prologue_us": round(cost.e2e_with_prologue_us, 3),
        "floor_us": round(floor_us, 3),
        "bounded_us": round(max(cost.e2e_us, floor_us), 3),
        "tasks": graph.tasks,
        "chain_depth": graph.chain_depth,
        "batches": graph.batches,
        "edges": graph.edges,
        "scatters": graph.scatters,
    }


def _quiet_config() -> str:
    spec = find_spec("pypto")
    if spec is None or spec.origin is None:
        raise CostModelError("the cost model needs the package pypto, which is not installed: pip install pypto.")
    path = Path(spec.origin).parent / "lib" / "configs" / "tile_fwk_config.json"
    config = json.loads(path.read_text())
    config["global"]["simulation"]["args"].append("Model.drawPngThresholdCycle=0")
    return json.dumps(config)


def _environment(config: Path) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in _HOSTILE}
    environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    environment["TILEFWK_CONFIG_PATH"] = str(config)
    return environment


def _child() -> None:
    """The runs themselves, each in a folder of its own; kernels and examples come through stdin."""
    runs = pickle.load(sys.stdin.buffer)
    for number, (kernel, examples) in enumerate(runs):
        folder = Path(str(number)).absolute()
        folder.mkdir()
        os.chdir(folder)
        kernel.build("cost")(*_tensors(examples))
        os.chdir(folder.parent)


def _tensors(examples: Sequence[Example]) -> list[torch.Tensor]:
    import torch

    tensors: list[torch.Tensor] = []
    for example in examples:
        dtype = getattr(torch, example.dtype)
        if example.memory_of is not None:
            tensors.append(tensors[example.memory_of].view(example.shape))
        elif example.fill == "zeros":
            tensors.append(torch.zeros(example.shape, dtype=dtype))
        elif example.fill == "arange":
            size = torch.Size(example.shape).numel()
            tensors.append(torch.arange(size).to(dtype).view(example.shape))
        else:
            tensors.append(torch.tensor(example.fill, dtype=dtype).view(example.shape))
    return tensors
