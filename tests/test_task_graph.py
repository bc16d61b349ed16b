"""The compiled graphs of the kernels, and that their reader sees what a wrong kernel loses."""

from concurrent.futures import ThreadPoolExecutor

import _checkout  # noqa: F401
import pytest

pytest.importorskip("pypto")

from scatter_pa_kv_cache.benchmarks.cost_model import CostModelError, Example, measure
from scatter_pa_kv_cache.benchmarks.task_graph import Cost, Task, TaskGraph
from scatter_pa_kv_cache.kernels.side import Side
from scatter_pa_kv_cache.kernels.tiling import MERGED, SEPARATE
from scatter_pa_kv_cache.runtime import Kernel

ROW = 512
TILE = 16
SIDE = Side("bfloat16", ROW, 1, ROW)
CACHE = Example((8, 128, 1, ROW), "bfloat16")


def norm(tokens, nbuffer):
    arguments = {
        **{"key_side": SIDE, "value_side": SIDE, "index_dtype": "int32", "one_index": True},
        **{"tile": TILE, "nbuffer": nbuffer},
    }
    source = Example((tokens, ROW), "bfloat16")
    index = Example((1, tokens), "int32", "arange")
    rows = [Example((8 * 128, ROW), "bfloat16", memory_of=number) for number in (4, 5)]
    kernel = Kernel("scatter_pa_kv_cache.kernels.norm:norm_kernel", tuple(arguments.items()))
    return measure(kernel, (source, source, index, index, CACHE, CACHE, *rows))


def serial(tokens):
    kernel = Kernel("hazard_kernels:serial_kernel", (("row", ROW), ("tile", TILE)))
    rows = Example((8 * 128, ROW), "bfloat16")
    return measure(kernel, (Example((tokens, ROW), "bfloat16"), Example((1, tokens), "int32", "arange"), rows))


def unrolled(tokens, unroll, tile=TILE):
    kernel = Kernel("hazard_kernels:unrolled_kernel", (("row", ROW), ("tile", tile), ("unroll", unroll)))
    source, index = Example((tokens, ROW), "bfloat16"), Example((1, tokens), "int32", "arange")
    return measure(kernel, (source, index, CACHE, Example((8 * 128, ROW), "bfloat16", memory_of=2)))


RUNS = {
    "separate, one tile": (norm, TILE, SEPARATE),
    "separate, tiles and a tail": (norm, 5 * TILE + 3, SEPARATE),
    "merged, one token": (norm, 1, MERGED),
    "merged, tiles and a tail": (norm, 5 * TILE + 3, MERGED),
    "no tokens": (norm, 0, SEPARATE),
    "serial": (serial, 5 * TILE),
    "unrolled by 4": (unrolled, 4 * TILE, [4]),
    "unrolled by 2": (unrolled, 4 * TILE, [2, 1]),
    "too large a tile": (unrolled, 1, [1], 192),
}


@pytest.fixture(scope="module")
def costs():
    """Each run's cost as a future: two processes at a time."""
    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(*run) for name, run in RUNS.items()}


@pytest.mark.parametrize(
    ("name", "tasks", "scatters"),
    [
        ("separate, one tile", 2, 2),
        ("separate, tiles and a tail", 12, 12),
        ("merged, one token", 1, 2),
        ("merged, tiles and a tail", 6, 12),
    ],
)
def test_tiles_of_the_norm_kernel_wait_for_nothing(costs, name, tasks, scatters):
    graph = costs[name].result().graph
    assert (graph.chain_depth, graph.edges, graph.batches) == (1, 0, 1)
    assert (graph.tasks, graph.scatters) == (tasks, scatters)
    # a task loads its index once and the rows of each scatter; a cache is never loaded
    assert graph.operations["COPY_IN"] == scatters + tasks
    assert "COPY_OUT" not in graph.operations


def test_no_tokens_no_tasks(costs):
    cost = costs["no tokens"].result()
    assert (cost.graph.tasks, cost.graph.scatters, cost.graph.chain_depth) == (0, 0, 0)
    assert (cost.cycles, cost.e2e_with_prologue_us, cost.repriced_us(60, 1)) == (0, 0, 0)


def test_a_chain_is_seen(costs):
    cost = costs["serial"].result()
    assert (cost.graph.chain_depth, cost.graph.tasks, cost.graph.scatters, cost.graph.edges) == (5, 5, 5, 4)
    assert cost.repriced_us(60, TILE) * 1800 == pytest.approx(cost.cycles + 60 * 5 * TILE)


@pytest.mark.parametrize(("name", "scatters"), [("unrolled by 4", 1), ("unrolled by 2", 2)])
def test_writes_lost_by_unrolling_are_seen(costs, name, scatters):
    graph = costs[name].result().graph
    assert (graph.scatters, graph.chain_depth) == (scatters, 1)  # four are needed


def test_a_tile_beyond_the_unified_buffer_is_an_error(costs):
    with pytest.raises(CostModelError, match="exit code 1 and 0 results on kernel unrolled_kernel"):
        costs["too large a tile"].result()


def cost_of(tasks, successors=None):
    """Tasks as (core, start, end, rows), numbered in that order; successors: number -> numbers."""
    timeline = tuple(
        Task((0, number), core, start, end, (rows,), False) for number, (core, start, end, rows) in enumerate(tasks)
    )
    after = {number: (successors or {}).get(number, ()) for number in range(len(tasks))}
    nodes = {(0, number): tuple((0, other) for other in others) for number, others in after.items()}
    return Cost(TaskGraph(len(tasks), sum(map(len, after.values())), 1, 1, {}, nodes), timeline)


def test_a_price_adds_to_the_longest_core():
    cost = cost_of([(24, 100, 200, 10), (24, 250, 350, 10), (25, 110, 210, 10)])
    assert cost.cycles == 250
    assert cost.repriced_us(0, 10) * 1800 == 250
    assert cost.repriced_us(3, 10) * 1800 == pytest.approx(250 + 3 * 20)
    assert cost.repriced_us(3, 4) * 1800 == pytest.approx(250 + 3 * 8)
    assert cost.rows_on_busiest_core(10) == 20


def test_a_price_hides_behind_a_slow_dispatch():
    cost = cost_of([(24, 0, 100, 10), (24, 110, 210, 10), (25, 0, 100, 10), (25, 1000, 1100, 10)])
    assert cost.repriced_us(3, 10) * 1800 == pytest.approx(1130)


def test_a_price_delays_what_waits():
    cost = cost_of([(24, 0, 100, 10), (25, 200, 300, 10)], {0: (1,)})
    assert cost.repriced_us(3, 10) * 1800 == pytest.approx(360)
