"""One kernel in PyPTO's cost model, in a process of its own.

The cost model leaks, prints, writes into the working directory and starts drawing scripts. Each run gets a fresh
process, a temporary folder and a copy of PyPTO's configuration without the drawings; nothing of it is left.
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
from .task_graph import Cost, CostModelError, TaskGraph, read_cost

if TYPE_CHECKING:
    import torch

__all__ = ["Cost", "CostModelError", "Example", "TaskGraph", "examples_of", "measure"]

TIMEOUT = 600  # seconds of one run
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
    """Examples of the shapes, dtypes and shared memory of a kernel's tensors, filled with zeros."""
    first: dict[tuple[int, int], int] = {}
    examples = []
    for number, tensor in enumerate(tensors):
        owner = first.setdefault((tensor.data_ptr(), tensor.numel()), number) if tensor.numel() else number
        dtype = str(tensor.dtype).removeprefix("torch.")
        examples.append(Example(tuple(tensor.shape), dtype, memory_of=None if owner == number else owner))
    return tuple(examples)


def measure(kernel: Kernel, examples: Sequence[Example], timeout: float = TIMEOUT) -> Cost:
    """Compile ``kernel`` and run it on ``examples`` in the cost model.

    Raises CostModelError, with PyPTO's last words, where it does not compile or run, or takes longer than ``timeout``
    seconds.
    """
    with tempfile.TemporaryDirectory(prefix="scatter-pa-cost-") as name:
        folder = Path(name)
        (folder / "config.json").write_text(_quiet_config())
        with open(folder / "log", "wb") as log:
            try:
                done = subprocess.run(
                    [sys.executable, "-c", _BOOT],
                    input=pickle.dumps((kernel, tuple(examples))),
                    cwd=folder,
                    env=_environment(folder / "config.json"),
                    stdout=log,
                    stderr=log,
                    check=False,
                    timeout=timeout,
                )
            except subprocess.TimeoutExpired:
                raise CostModelError(f"kernel {kernel.name} took longer than {timeout} s in the cost model.") from None
        calls = list((folder / "output").glob("*/program.json"))
        if done.returncode or len(calls) != 1:
            words = "\n".join((folder / "log").read_text(errors="replace").strip().splitlines()[-8:])
            raise CostModelError(
                f"the cost model ended with exit code {done.returncode} and {len(calls)} results on kernel "
                f"{kernel.name}. Its last words:\n{words}"
            )
        return read_cost(calls[0].parent)


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
    """The run itself; kernel and examples come through stdin."""
    kernel, examples = pickle.load(sys.stdin.buffer)
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
    kernel.build("cost")(*tensors)
