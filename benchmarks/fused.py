"""The fused kernels of patterns/ in PyPTO's cost model. No figure here was measured on a device."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..configs_fused import FUSED_CONFIGS, FusedConfig
from ..fused import launches
from . import results
from .cost_model import Cost, Example, examples_of, measure
from .model import LABEL

CONFIGS = ("glm_two_tiles", "glm_bf16", "mla_five_tiles", "mla_bf16_five_tiles", "compressor_overshoot")
COLUMNS = ("config", "kernel", "tasks", "chain", "scatters", "E2E us")


class Row(NamedTuple):
    """One launch of a config."""

    config: str
    kernel: str
    cost: Cost

    def cells(self) -> list[str]:
        graph = self.cost.graph
        numbers = (graph.tasks, graph.chain_depth, graph.scatters)
        return [self.config, self.kernel, *map(str, numbers), f"{self.cost.e2e_us:.2f}"]


def bench(config: FusedConfig) -> list[Row]:
    """The cost of every launch of a config."""
    rows = []
    for launch in launches(config):
        examples = [with_scalars(*pair) for pair in zip(examples_of(launch.tensors), launch.tensors, strict=True)]
        rows.append(Row(config.name, launch.kernel.name, measure(launch.kernel, examples)))
    return rows


def with_scalars(example: Example, tensor: Tensor) -> Example:
    """The example with the elements of an int32 tensor: kernels read lengths and tables as scalars."""
    if tensor.dtype != torch.int32:
        return example
    return replace(example, fill=tuple(tensor.flatten().tolist()))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m scatter_pa_kv_cache.benchmarks.fused", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"fused configs; default: {', '.join(CONFIGS)}")
    names = parser.parse_args(argv).names or CONFIGS
    known = {config.name: config for config in FUSED_CONFIGS}
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"there is no fused config named {', '.join(unknown)}; they are {', '.join(known)}")
    rows = [row.cells() for name in names for row in bench(known[name])]
    print(f"{LABEL}: microseconds, of one launch each.")
    print(results.table([COLUMNS, *rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
