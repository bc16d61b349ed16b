"""The compiled graphs of the kernels, and that their reader sees what a wrong kernel loses."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import _checkout  # noqa: F401
import pytest

pytest.importorskip("pypto")

from scatter_pa_kv_cache.benchmarks import scenarios
from scatter_pa_kv_cache.benchmarks.cost_model import CostModelError, Example, examples_of, measure_all
from scatter_pa_kv_cache.benchmarks.task_graph import Cost, Task, TaskGraph
from scatter_pa_kv_cache.kernels.side import Side
from scatter_pa_kv_cache.kernels.tiling import MERGED, SEPARATE
from scatter_pa_kv_cache.runtime import Kernel
from scatter_pa_kv_cache.scenarios import SCENARIOS as SCENARIO_TABLE

ROW = 512
TILE = 16
SIDE = Side("bfloat16", ROW, 1, ROW)
ROPE_CHAIN = 2  # tiles of 8 for windows of 9 and 10
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
    return kernel, (source, source, index, index, CACHE, CACHE, *rows)


def serial(tokens):
    kernel = Kernel("hazard_kernels:serial_kernel", (("row", ROW), ("tile", TILE)))
    rows = Example((8 * 128, ROW), "bfloat16")
    return kernel, (Example((tokens, ROW), "bfloat16"), Example((1, tokens), "int32", "arange"), rows)


def unrolled(tokens, unroll, tile=TILE):
    kernel = Kernel("hazard_kernels:unrolled_kernel", (("row", ROW), ("tile", tile), ("unroll", unroll)))
    source, index = Example((tokens, ROW), "bfloat16"), Example((1, tokens), "int32", "arange")
    return kernel, (source, index, CACHE, Example((8 * 128, ROW), "bfloat16", memory_of=2))


RUNS = {
    "separate, one tile": norm(TILE, SEPARATE),
    "separate, tiles and a tail": norm(5 * TILE + 3, SEPARATE),
    "merged, one token": norm(1, MERGED),
    "merged, tiles and a tail": norm(5 * TILE + 3, MERGED),
    "no tokens": norm(0, SEPARATE),
    "serial": serial(5 * TILE),
    "unrolled by 4": unrolled(4 * TILE, (4,)),
    "unrolled by 2": unrolled(4 * TILE, (2, 1)),
}

# one for each kernel and mode, small, with windows within and beyond a tile; and a tile that cuts the longest runs
SCENARIOS = {
    "pa_nz_5d": 8,
    "norm_value_narrower": 8,
    "nct_dense": 8,
    "compress_4d_rope_function_p0": 8,
    "compress_4d_omni_function_p0": 16,
    "compress_4d_alibi_function_p0": 16,
    "alibi_function_p0": 16,
    "rope_function_p0": 8,
    "omni_function_p0": 16,
    "key_only_boundary_p0": 64,
    "nhsd_one_head": 8,
    "nhsd_int8": 8,
}


def planned(name, tile):
    config = scenarios.config_of(name)
    plan = scenarios.plan_of(config)
    arguments = {**dict(plan.kernel.arguments), "tile": tile}
    return config, replace(plan, tile=tile, kernel=replace(plan.kernel, arguments=tuple(arguments.items())))


@pytest.fixture(scope="module")
def costs():
    """Every run's cost, of two processes side by side."""
    plans = [planned(name, tile)[1] for name, tile in SCENARIOS.items()]
    with ThreadPoolExecutor(2) as pool:
        ours = pool.submit(measure_all, [(plan.kernel, examples_of(plan.tensors())) for plan in plans])
        others = pool.submit(measure_all, list(RUNS.values()))
        return dict(zip((*SCENARIOS, *RUNS), (*ours.result(), *others.result()), strict=True))


def test_the_scenarios_are_all_here():
    modules = {(row.number, mode) for row in SCENARIO_TABLE for mode in row.modules}
    here = {(config.scenario, config.scatter_mode) for config in map(scenarios.config_of, SCENARIOS)}
    assert here == modules - {(6, "Nct")}  # key only has one kernel, which sees a buffer as it sees a key


@pytest.mark.parametrize(("name", "tile"), SCENARIOS.items())
def test_tasks_scatters_and_chains_of_every_scenario(costs, name, tile):
    """Nothing lost and nothing read twice; only the tiles of one Rope window wait for each other."""
    config, plan = planned(name, tile)
    graph, needs = costs[name].graph, scenarios.needs_of(config, plan)
    assert needs.differences(costs[name]) == ""
    assert (graph.tasks, graph.scatters, graph.chain_depth) == (needs.tasks, needs.scatters, needs.chain_depth)
    assert graph.tasks > len(plan.sides), "several tiles"
    assert needs.chain_depth == (ROPE_CHAIN if config.averages else 1)
    assert not {"key_cache", "value_cache", "key_rows", "value_rows"} & graph.loads.keys(), "a cache is only written"


@pytest.mark.parametrize("name", [name for name in scenarios.NAMES if "rope" in name])
def test_usual_windows_fit_a_tile(name):
    """Of up to 131 tokens: no task waits for another."""
    config = scenarios.config_of(f"{name}_performance_p0")
    needs = scenarios.needs_of(config, scenarios.plan_of(config))
    assert (needs.edges, needs.chain_depth) == (0, 1)


def test_needs_by_hand():
    """Rope: (9, 5), (7, -1) of 40 tokens; two of none; (8, 0), (10, 13) of 23 tokens; two heads and 8 tokens a tile."""
    needs = scenarios.needs_of(*planned("rope_function_p0", 8))
    copies = (1 + 4) + 5 + 0 + 2 + 2  # before 5, after 26; 40; after 15; before 13, after 0
    assert (needs.tasks, needs.scatters) == (2 * (copies + 2 + 1 + 2), 2 * (copies + 3))
    assert (needs.edges, needs.chain_depth, needs.source_loads) == (2 * 2, 2, needs.tasks)
    copied = 31 + 40 + 15 + 13
    assert (needs.rows_read, needs.rows_written) == (2 * (copied + 27), 2 * (copied + 3))


def test_a_difference_is_named(costs):
    config, plan = planned("alibi_function_p0", 16)
    other = scenarios.needs_of(*planned("omni_function_p0", 16))
    assert "tasks instead of" in other.differences(costs["alibi_function_p0"])
    assert scenarios.needs_of(config, plan).differences(costs["alibi_function_p0"]) == ""


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
    graph = costs[name].graph
    assert (graph.chain_depth, graph.edges, graph.batches) == (1, 0, 1)
    assert (graph.tasks, graph.scatters) == (tasks, scatters)
    # a task loads its index once and the rows of each scatter; a cache is never loaded
    assert graph.operations["COPY_IN"] == scatters + tasks
    assert "COPY_OUT" not in graph.operations


def test_no_tokens_no_tasks(costs):
    cost = costs["no tokens"]
    assert (cost.graph.tasks, cost.graph.scatters, cost.graph.chain_depth) == (0, 0, 0)
    assert (cost.cycles, cost.e2e_with_prologue_us, cost.repriced_us(60, 1)) == (0, 0, 0)


def test_a_chain_is_seen(costs):
    cost = costs["serial"]
    assert (cost.graph.chain_depth, cost.graph.tasks, cost.graph.scatters, cost.graph.edges) == (5, 5, 5, 4)
    assert cost.repriced_us(60, TILE) * 1800 == pytest.approx(cost.cycles + 60 * 5 * TILE)


@pytest.mark.parametrize(("name", "scatters"), [("unrolled by 4", 1), ("unrolled by 2", 2)])
def test_writes_lost_by_unrolling_are_seen(costs, name, scatters):
    graph = costs[name].graph
    assert (graph.scatters, graph.chain_depth) == (scatters, 1)  # four are needed


def test_a_tile_beyond_the_unified_buffer_is_an_error():
    with pytest.raises(CostModelError, match="exit code 1 and 0 results on kernel unrolled_kernel"):
        measure_all([unrolled(1, (1,)), unrolled(1, (1,), tile=192), norm(1, SEPARATE)])


def cost_of(tasks, successors=None):
    """Tasks as (core, start, end, rows), numbered in that order; successors: number -> numbers."""
    timeline = tuple(
        Task((0, number), core, start, end, (rows,), False) for number, (core, start, end, rows) in enumerate(tasks)
    )
    after = {number: (successors or {}).get(number, ()) for number in range(len(tasks))}
    nodes = {(0, number): tuple((0, other) for other in others) for number, others in after.items()}
    return Cost(TaskGraph(len(tasks), sum(map(len, after.values())), 1, 1, {}, nodes, {}), timeline)


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
