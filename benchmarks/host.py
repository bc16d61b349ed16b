"""What a call costs on the host before PyPTO's launch: checks, dispatch, view building, the look-up of the kernel.

No NPU is needed and none is used. In this process alone, :func:`sink` has CPU tensors planned as an NPU's are and puts
a function that does nothing in the place of the compiled kernel. So no figure here holds PyPTO's launch or compilation,
nor what torch_npu charges for the same torch operations. "first" is a call of a signature that was never seen.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from . import results

if TYPE_CHECKING:
    import torch

CALL_LIMIT_NS, RUN_LIMIT_NS = 25_000, 5_000  # a repeated call, and plan.run()
QUIET = 1.2  # load average up to which the machine counts as quiet
ROUNDS, SECONDS_A_ROUND = 25, 0.02
TOKENS = (1, 32, 2633)
COLUMNS = ("config", "what", "first us", "best us", "median us", "torch operations", "views", "limit us", "")


class Figure(NamedTuple):
    """One thing that was timed, in ns a call. operations, views: torch operations in it that compute, and that do not.

    first: None where no first call differs. limit: None where there is none.
    """

    config: str
    what: str
    first: int | None
    best: int
    median: int
    operations: int
    views: int
    limit: int | None = None

    @property
    def within(self) -> bool:
        return self.limit is None or self.median <= self.limit

    def cells(self) -> list[str]:
        times = (self.first, self.best, self.median)
        limit = "" if self.limit is None else f"{self.limit / 1000:.0f}"
        verdict = "" if self.limit is None else ("met" if self.within else "MISSED")
        cells = ["" if time is None else f"{time / 1000:.2f}" for time in times]
        return [self.config, self.what, *cells, str(self.operations), str(self.views), limit, verdict]

    def record(self) -> dict[str, object]:
        """The row as kept in the CSV file."""
        return {
            **results.environment("host CPU; the launch is replaced by a function that does nothing"),
            "bench": "host",
            "label": f"measured, load average {os.getloadavg()[0]:.2f}",
            "kernel": self.what,
            "config": self.config,
            "first_ns": "" if self.first is None else self.first,
            "best_ns": self.best,
            "median_ns": self.median,
            "operations": self.operations,
            "views": self.views,
        }


@contextmanager
def sink() -> Iterator[None]:
    """While it lasts, CPU tensors are planned for an NPU and every launch does nothing.

    The look-up of a kernel by its hash stays as it is. What was decided meanwhile is forgotten at the end.
    """
    from .. import planning, runtime

    kept = planning.choose_run_mode, runtime._on_npu
    planning.choose_run_mode = lambda run_mode, tensor: "npu"
    runtime._on_npu = cache(lambda kernel: _nothing)
    planning._decisions.clear()
    try:
        yield
    finally:
        planning.choose_run_mode, runtime._on_npu = kept
        planning._decisions.clear()


def _nothing(*tensors: torch.Tensor) -> None:
    pass


def timed(call: Callable[[], object]) -> tuple[int, int]:
    """Best and median ns of a call over ROUNDS rounds, the garbage collector off."""
    for _ in range(20):
        call()
    begin = perf_counter_ns()
    call()
    number = max(10, int(SECONDS_A_ROUND * 1e9 / max(1, perf_counter_ns() - begin)))
    rounds = []
    collects = gc.isenabled()
    gc.disable()
    try:
        for _ in range(ROUNDS):
            begin = perf_counter_ns()
            for _ in range(number):
                call()
            rounds.append((perf_counter_ns() - begin) // number)
    finally:
        if collects:
            gc.enable()
    return min(rounds), int(median(rounds))


def first_time(call: Callable[[], object]) -> int:
    """Median ns of five calls, each of a signature that was forgotten."""
    from .. import planning

    times = []
    for _ in range(5):
        planning._decisions.clear()
        begin = perf_counter_ns()
        call()
        times.append(perf_counter_ns() - begin)
    return int(median(times))


def count(call: Callable[[], object]) -> tuple[int, int]:
    """Torch operations of a call: those that compute, and those that make a view."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):
        computing = views = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            aliases = [returned.alias_info for returned in function._schema.returns]
            if any(alias is not None and not alias.is_write for alias in aliases):
                self.views += 1
            else:
                self.computing += 1
            return function(*args, **(kwargs or {}))

    with Counter() as counter:
        call()
    return counter.computing, counter.views


def figure(
    config: str, what: str, call: Callable[[], object], *, first: bool = False, limit: int | None = None
) -> Figure:
    """Time one call."""
    start = first_time(call) if first else None
    return Figure(config, what, start, *timed(call), *count(call), limit)


def yardsticks() -> list[Figure]:
    """A call of a Python function that does nothing, and torch's own way to write a row."""
    import torch

    key, cache_, slots = torch.zeros(1, 512).bfloat16(), torch.zeros(8192, 512).bfloat16(), torch.tensor([5])

    def nothing(key, key_cache, slot_mapping, value=None, value_cache=None, **options):
        pass

    put = torch.ops.aten.index_put_
    return [
        figure("-", "a Python function of 5 arguments", lambda: nothing(key, cache_, slots, key, cache_)),
        figure("K [1, 512]", "aten.index_put_, its work included", lambda: put(cache_, [slots], key)),
        figure(
            "K and V [1, 512]", "aten.index_put_ twice", lambda: (put(cache_, [slots], key), put(cache_, [slots], key))
        ),
    ]


def call_figures(config: str, arguments: dict[str, Any], shares: bool) -> list[Figure]:
    """Plain call, plan and run of one call; with a shared row index too where ``shares``. Inside of :func:`sink`."""
    from .. import plan, row_index, scatter_pa_kv_cache

    planned = plan(**arguments)
    figures = [
        figure(config, "call", lambda: scatter_pa_kv_cache(**arguments), first=True, limit=CALL_LIMIT_NS),
        figure(config, "plan(...)", lambda: plan(**arguments), first=True),
        figure(config, "plan.run()", planned.run, limit=RUN_LIMIT_NS),
    ]
    if shares:
        modes = {name: arguments[name] for name in ("cache_mode", "scatter_mode") if name in arguments}
        given = (arguments["slot_mapping"], arguments["key_cache"], arguments.get("value_cache"))
        shared = arguments | {"slot_mapping": row_index(*given, **modes)}
        sharing = plan(**shared)
        figures += [
            figure(config, "row_index(...), once a step", lambda: row_index(*given, **modes)),
            figure(config, "call, row index shared", lambda: scatter_pa_kv_cache(**shared), limit=CALL_LIMIT_NS),
            figure(config, "plan.run(), row index shared", sharing.run, limit=RUN_LIMIT_NS),
        ]
    return figures


def bench() -> list[Figure]:
    """All figures, of one process."""
    import torch

    from ..inputs import make_inputs
    from .scenarios import config_of

    figures = yardsticks()
    with sink():
        for tokens in TOKENS:
            source, cache_ = torch.zeros(tokens, 2, 256).bfloat16(), torch.zeros(64, 128, 2, 256).bfloat16()
            given = {"key": source, "key_cache": cache_, "value": source.clone(), "value_cache": cache_.clone()}
            slots = torch.arange(tokens, dtype=torch.int32)
            figures += call_figures(f"Norm [{tokens}, 2, 256]", given | {"slot_mapping": slots}, shares=tokens == 1)
        for name in ("key_only", "pa_nz", "nhsd", "nct", "alibi", "rope"):
            inputs = make_inputs(config_of(f"{name}_performance_p0"))
            figures += call_figures(name, inputs, shares=name in ("pa_nz", "nhsd"))
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table. Returns 0, also where a limit is missed: on a busy machine each may be."""
    parser = argparse.ArgumentParser(prog="python -m scatter_pa_kv_cache bench host", description=__doc__)
    parser.add_argument("--save", action="store_true", help=f"append the rows to {results.DEFAULT.name}")
    parser.add_argument("--csv", type=Path, help="append the rows to this file")
    options = parser.parse_args(argv)
    load = os.getloadavg()[0]
    figures = bench()
    print(f"Host time of a call without PyPTO's launch, which a function that does nothing replaces; {ROUNDS} rounds.")
    print(f"Load average {load:.2f}: {'quiet' if load <= QUIET else 'NOT QUIET, the figures are too high'}.")
    print(results.table([COLUMNS, *(figure.cells() for figure in figures)]))
    if options.csv or options.save:
        results.append(options.csv or results.DEFAULT, [figure.record() for figure in figures])
    return 0


if __name__ == "__main__":
    sys.exit(main())
