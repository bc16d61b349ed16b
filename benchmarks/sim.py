"""What a sim call costs: wall time and peak memory by tokens, blocks and tile, each in a host process of its own.

The parts are told from outside, by a clock around what the host exchanges with the worker: start (the process, its
imports, the calculator from the cache), verdicts and values (compilation and interpretation: from the last byte sent
to the first one back), transfer (to the worker), read-back, and the rest, which is the host's own: planning, golden,
blocks taken out and put back. A second call of the same signature has its verdicts remembered.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from . import results

if TYPE_CHECKING:
    import torch

SECONDS_LIMIT, GIB_LIMIT = 15, 4  # of config1, which has 2633 tokens and 21 blocks
_BOOT = "from scatter_pa_kv_cache.benchmarks.sim import _child; _child()"
COLUMNS = (
    *("T", "blocks", "tile", "call", "wall s", "start", "verdicts", "values", "launches", "transfer", "read-back"),
    *("rest", "host MiB", "worker MiB"),
)
PARTS = ("start", "verdicts", "values", "transfer", "read_back")


@dataclass(frozen=True, slots=True)
class Case:
    """K and V [tokens, 2, 256] bfloat16, random distinct slots. tile: tokens a tile, 0 for the rule's."""

    tokens: int
    blocks: int
    tile: int = 0


CONFIG1 = Case(2633, 21)
CASES = (
    *(Case(1, 21), Case(256, 21), CONFIG1),
    *(Case(2633, 1024), Case(2633, 21, 16), Case(2633, 21, 184), Case(16384, 128)),
)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a case, "first" or "second", in seconds; peaks of the processes until then, in MiB."""

    case: Case
    call: str
    tile: int
    wall: float
    parts: dict[str, float]
    launches: int
    host_mib: int
    worker_mib: int

    @property
    def rest(self) -> float:
        return self.wall - sum(self.parts.values())

    def cells(self) -> list[str]:
        start, verdicts, values, transfer, read_back = (f"{self.parts[part]:.2f}" for part in PARTS)
        return [
            *(str(self.case.tokens), str(self.case.blocks), str(self.tile), self.call, f"{self.wall:.2f}", start),
            *(verdicts, values, str(self.launches), transfer, read_back, f"{self.rest:.2f}"),
            *(str(self.host_mib), str(self.worker_mib)),
        ]

    def record(self) -> dict[str, object]:
        """The row as kept in the CSV file."""
        return {
            **results.environment("host CPU, PyPTO's interpreter"),
            "bench": "sim",
            "label": f"measured, load average {os.getloadavg()[0]:.2f}",
            "config": f"{self.call} call, [{self.case.tokens},2,256] bfloat16 K+V",
            "tokens": self.case.tokens,
            "blocks": self.case.blocks,
            "tile": self.tile,
            "wall_s": round(self.wall, 3),
            **{f"{part}_s": round(self.parts[part], 3) for part in PARTS},
            "rest_s": round(self.rest, 3),
            "launches": self.launches,
            "host_mib": self.host_mib,
            "worker_mib": self.worker_mib,
        }


def bench(case: Case) -> list[Call]:
    """A first and a second call of a case in a new process. Raises RuntimeError with its last words if that fails."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", _BOOT],
        input=json.dumps(asdict(case)),
        cwd=tempfile.gettempdir(),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{case} ended with exit code {done.returncode}.\n{done.stderr[-2000:]}")
    return [Call(case, **call) for call in json.loads(done.stdout.splitlines()[-1])]


def _child() -> None:
    """Both calls of the case that stands in stdin; prints them as JSON."""
    case = Case(**json.load(sys.stdin))
    import torch

    from ..sim_process import WORKER

    random = torch.Generator().manual_seed(case.tokens)
    key, value = (torch.randn(case.tokens, 2, 256, generator=random).bfloat16() for _ in range(2))
    caches = [torch.zeros(case.blocks, 128, 2, 256, dtype=torch.bfloat16) for _ in range(2)]
    slots = torch.randperm(case.blocks * 128, generator=random)[: case.tokens].int()
    calls = []
    for name in ("first", "second"):
        with exchanges() as parts:
            begin = perf_counter()
            tile = _call(case.tile, key, caches[0], slots, value, caches[1])
            wall = perf_counter() - begin
        for cache, source in zip(caches, (key, value), strict=True):
            if not torch.equal(cache.view(-1, 2, 256)[slots.long()], source):
                raise RuntimeError(f"{case} left wrong rows in a cache.")
        calls.append(
            {
                "call": name,
                "tile": tile,
                "wall": wall,
                "parts": {part: parts[part] for part in PARTS},
                "launches": int(parts["launches"]),
                "host_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                "worker_mib": _peak_mib(WORKER._process.pid) if WORKER._process else 0,
            }
        )
    print(json.dumps(calls))


def _call(tile: int, *tensors: torch.Tensor) -> int:
    """The call, with another tile where one is given; returns the tile."""
    from dataclasses import replace

    from .. import plan
    from ..plans import KernelPlan

    planned = plan(*tensors, run_mode="sim")
    assert isinstance(planned, KernelPlan)
    if tile:
        arguments = {**dict(planned.kernel.arguments), "tile": tile}
        planned = replace(planned, tile=tile, kernel=replace(planned.kernel, arguments=tuple(arguments.items())))
    planned.run()
    return planned.tile


@contextmanager
def exchanges() -> Iterator[dict[str, float]]:
    """Seconds that the worker's exchanges take while it lasts, by PARTS, and "launches" of the stage values."""
    from ..sim_process import Worker

    spent = dict.fromkeys((*PARTS, "launches"), 0.0)
    start, ask = Worker._start, Worker._ask

    def timed_start(self: Worker) -> None:
        begin = perf_counter()
        start(self)
        spent["start"] += perf_counter() - begin

    def timed_ask(self: Worker, launch: Any) -> Any:
        if launch is None:
            return ask(self, launch)
        assert self._pipe is not None
        begin = perf_counter()
        self._pipe.send(launch)
        sent = perf_counter()
        self._pipe.poll(None)
        answered = perf_counter()
        answer = self._pipe.recv()
        spent["transfer"] += sent - begin
        spent[launch.stage] += answered - sent
        spent["read_back"] += perf_counter() - answered
        spent["launches"] += launch.stage == "values"
        return answer

    Worker._start, Worker._ask = timed_start, timed_ask  # type: ignore[method-assign]
    try:
        yield spent
    finally:
        Worker._start, Worker._ask = start, ask  # type: ignore[method-assign]


def _peak_mib(process: int) -> int:
    """The most memory that a process had at once, as Linux counts it."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table. Returns 1 where config1 misses its limits."""
    parser = argparse.ArgumentParser(prog="python -m scatter_pa_kv_cache bench sim", description=__doc__)
    parser.add_argument(
        "--case", nargs=3, type=int, metavar=("T", "BLOCKS", "TILE"), help="one case; tile 0: the rule's"
    )
    parser.add_argument("--quick", action="store_true", help="config1 alone")
    parser.add_argument("--save", action="store_true", help=f"append the rows to {results.DEFAULT.name}")
    parser.add_argument("--csv", type=Path, help="append the rows to this file")
    options = parser.parse_args(argv)
    cases = [Case(*options.case)] if options.case else [CONFIG1] if options.quick else CASES
    from .. import calculator

    begin = perf_counter()
    calculator.library()
    built = perf_counter() - begin
    calls = [call for case in cases for call in bench(case)]
    print("Sim calls: K and V [T, 2, 256] bfloat16, 128-slot blocks; every value and every compiler pass is checked.")
    print(f"The calculator was {'built' if built > 1 else 'found in the cache'} in {built:.2f} s beforehand.")
    print(f"Load average {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores.")
    print(results.table([COLUMNS, *(call.cells() for call in calls)]))
    if options.csv or options.save:
        results.append(options.csv or results.DEFAULT, [call.record() for call in calls])
    return _judge_config1(calls)


def _judge_config1(calls: Sequence[Call]) -> int:
    for call in calls:
        if call.case == CONFIG1 and call.call == "first":
            gib = (call.host_mib + call.worker_mib) / 1024
            met = call.wall <= SECONDS_LIMIT and gib <= GIB_LIMIT
            figures = f"{call.wall:.1f} s of {SECONDS_LIMIT} and {gib:.2f} GiB of {GIB_LIMIT}"
            print(f"config1, first call, both processes: {figures}: {'met' if met else 'MISSED'}")
            return 0 if met else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
