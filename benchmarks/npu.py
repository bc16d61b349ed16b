"""The harness for an NPU: milliseconds, GB/s and percent of the HBM roof, beside torch_npu's own operators.

It was never run on an NPU by this project, which had none: only its own arithmetic is tested. A kernel has a figure
only where the caches that it left equal those of torch's index_put_. Each launch is timed by a pair of events on the
device. The calls rotate over several caches, and before each one a buffer of twice the L2 cache is filled, so that the
L2 is cold and the host is ahead of the device.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from . import results

if TYPE_CHECKING:
    import torch

HBM_BYTES_PER_MS = 1.6e9  # 910B2
L2_BYTES = 192 * 2**20
WARM_UP, ROUNDS, CACHES = 10, 100, 4
TOKENS = (1, 32, 256, 2633, 7902, 16384)
HEADS, HEAD_SIZE, BLOCK_SIZE, BLOCKS = 2, 256, 128, 1024
COLUMNS = ("T", "kernel", "best ms", "median ms", "GB/s", "% of roof", "")
Prepare = Callable[["Call"], Callable[[], object]]


class Call(NamedTuple):
    """Key and value [T, 2, 256] bfloat16, caches [blocks, 128, 2, 256], slots [T] int32, all distinct."""

    key: torch.Tensor
    value: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    slots: torch.Tensor


@dataclass(frozen=True, slots=True)
class Figure:
    """One kernel on one number of tokens. times: ms of each round, none where the kernel is wrong, for ``reason``."""

    tokens: int
    blocks: int
    kernel: str
    times: tuple[float, ...]
    device: str
    reason: str = ""

    @property
    def gb_per_s(self) -> float:
        """Key, value and slots read once and the cache rows written once, over the median time."""
        return self._bytes / median(self.times) / 1e6

    @property
    def roof_percent(self) -> float:
        return 100 * self._bytes / HBM_BYTES_PER_MS / median(self.times)

    @property
    def _bytes(self) -> int:
        return self.tokens * (8 * HEADS * HEAD_SIZE + 4)

    def cells(self) -> list[str]:
        if not self.times:
            return [str(self.tokens), self.kernel, "", "", "", "", self.reason]
        times = f"{min(self.times):.4f}", f"{median(self.times):.4f}"
        return [str(self.tokens), self.kernel, *times, f"{self.gb_per_s:.1f}", f"{self.roof_percent:.1f}", ""]

    def record(self) -> dict[str, object]:
        """The row as kept in the CSV file."""
        measured: dict[str, object] = {}
        if self.times:
            measured = {
                "best_ms": round(min(self.times), 5),
                "median_ms": round(median(self.times), 5),
                "gb_per_s": round(self.gb_per_s, 2),
                "roof_percent": round(self.roof_percent, 2),
            }
        return {
            **results.environment(self.device),
            "bench": "npu",
            "label": "measured on an NPU",
            "kernel": self.kernel,
            "config": f"[{self.tokens},{HEADS},{HEAD_SIZE}] bfloat16 K+V",
            "kv_dim": HEADS * HEAD_SIZE,
            "tokens": self.tokens,
            "blocks": self.blocks,
            "verdict": self.reason or "PASS",
            **measured,
        }


def kernels() -> dict[str, Prepare]:
    """What is timed, by name: a call -> the function whose launches are timed. torch_npu's where it has them."""
    from .. import plan, scatter_pa_kv_cache

    found: dict[str, Prepare] = {
        "plan.run()": lambda call: (
            plan(call.key, call.key_cache, call.slots, call.value, call.value_cache, run_mode="npu").run
        ),
        "scatter_pa_kv_cache": lambda call: (
            lambda: scatter_pa_kv_cache(call.key, call.key_cache, call.slots, call.value, call.value_cache)
        ),
    }
    torch_npu = importlib.import_module("torch_npu")
    if hasattr(torch_npu, "_npu_reshape_and_cache"):
        found["_npu_reshape_and_cache"] = lambda call: lambda: torch_npu._npu_reshape_and_cache(*call)
    if hasattr(torch_npu, "npu_scatter_pa_kv_cache"):
        found["npu_scatter_pa_kv_cache"] = lambda call: (
            lambda: torch_npu.npu_scatter_pa_kv_cache(*call, cache_mode="Norm")
        )
    return found


def make_calls(tokens: int, blocks: int, device: str) -> list[Call]:
    """CACHES calls on memory of their own, of different slots."""
    import torch

    random = torch.Generator().manual_seed(tokens)
    calls = []
    for _ in range(CACHES):
        key, value = (torch.randn(tokens, HEADS, HEAD_SIZE, generator=random).bfloat16() for _ in range(2))
        shape = (blocks, BLOCK_SIZE, HEADS, HEAD_SIZE)
        key_cache, value_cache = (torch.zeros(shape, dtype=torch.bfloat16, device=device) for _ in range(2))
        slots = torch.randperm(blocks * BLOCK_SIZE, generator=random)[:tokens].int()
        calls.append(Call(key.to(device), value.to(device), key_cache, value_cache, slots.to(device)))
    return calls


def time_kernel(prepare: Prepare, calls: Sequence[Call], device: Any, flush: Callable[[], object]) -> tuple[float, ...]:
    """Milliseconds of ROUNDS launches. device: torch.npu, or what has its Event and synchronize."""
    functions = [prepare(call) for call in calls]
    for number in range(WARM_UP):
        functions[number % len(functions)]()
    device.synchronize()
    pairs = []
    for number in range(ROUNDS):
        flush()
        pair = device.Event(enable_timing=True), device.Event(enable_timing=True)
        pair[0].record()
        functions[number % len(functions)]()
        pair[1].record()
        pairs.append(pair)
    device.synchronize()
    return tuple(begin.elapsed_time(end) for begin, end in pairs)


def wrong(prepare: Prepare, call: Call) -> str:
    """Why what a kernel writes into empty caches differs from torch's index_put_, "" if it does not."""
    import torch

    wanted = [cache.zero_().clone() for cache in (call.key_cache, call.value_cache)]
    for cache, source in zip(wanted, (call.key, call.value), strict=True):
        cache.view(-1, HEADS, HEAD_SIZE)[call.slots.long()] = source
    try:
        prepare(call)()
        same = torch.equal(call.key_cache, wanted[0]) and torch.equal(call.value_cache, wanted[1])
    except Exception as error:  # an operator of another library may refuse the call in any way
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no text'}"
    return "" if same else "the caches differ from those of index_put_: no figure"


def bench(tokens: int, blocks: int, device: Any, where: str, candidates: dict[str, Prepare]) -> list[Figure]:
    """Every candidate on one number of tokens. where: the device's name in torch, such as "npu:0"."""
    import torch

    calls = make_calls(tokens, blocks, where)
    buffer = torch.empty(2 * L2_BYTES if where != "cpu" else 1, dtype=torch.int8, device=where)
    name = device.get_device_name()
    figures = []
    for kernel, prepare in candidates.items():
        reason = wrong(prepare, calls[0])
        times = () if reason else time_kernel(prepare, calls, device, buffer.zero_)
        figures.append(Figure(tokens, blocks, kernel, times, name, reason))
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table. Returns 1 where a kernel is wrong, 2 without an NPU."""
    parser = argparse.ArgumentParser(prog="python -m scatter_pa_kv_cache bench npu", description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS, help="numbers of tokens")
    parser.add_argument("--blocks", type=int, default=BLOCKS, help=f"blocks of each of {2 * CACHES} caches")
    parser.add_argument("--save", action="store_true", help=f"append the rows to {results.DEFAULT.name}")
    parser.add_argument("--csv", type=Path, help="append the rows to this file")
    options = parser.parse_args(argv)
    if min(options.tokens) < 1 or max(options.tokens) > options.blocks * BLOCK_SIZE:
        parser.error(f"--tokens must be from 1 to the {options.blocks * BLOCK_SIZE} slots of {options.blocks} blocks")
    try:
        importlib.import_module("torch_npu")
    except (ImportError, OSError) as error:
        print(f"bench npu needs an NPU and torch_npu, which cannot be imported here: {error}", file=sys.stderr)
        return 2
    import torch

    from ..runtime import npu_available

    if not npu_available():
        print("bench npu needs an NPU, and torch_npu finds none on this host", file=sys.stderr)
        return 2
    device = getattr(torch, "npu")  # noqa: B009  # torch_npu adds it
    where = f"npu:{device.current_device()}"
    candidates = kernels()
    figures = [
        figure for tokens in options.tokens for figure in bench(tokens, options.blocks, device, where, candidates)
    ]
    print(f"{device.get_device_name()}: K and V [T, {HEADS}, {HEAD_SIZE}] bfloat16, {options.blocks} blocks, cold L2")
    print(results.table([COLUMNS, *(figure.cells() for figure in figures)]))
    if options.csv or options.save:
        results.append(options.csv or results.DEFAULT, [figure.record() for figure in figures])
    return 1 if any(figure.reason and figure.kernel in list(candidates)[:2] for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
