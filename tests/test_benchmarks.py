"""The benchmarks: right figures for right kernels, none for wrong ones, and the same words for every machine."""

import csv
import sys
from collections.abc import Callable
from types import SimpleNamespace

import _checkout  # noqa: F401
import pytest
import torch

pytest.importorskip("pypto")

from scatter_pa_kv_cache import plan, planning, runtime
from scatter_pa_kv_cache.benchmarks import assembled, host, model, npu, plot, results, sim
from scatter_pa_kv_cache.benchmarks.beside_field import COLUMNS, bench
from scatter_pa_kv_cache.benchmarks.cost_model import ROW_PRICES

TOKENS = 20
TILES = 400  # tokens that need several tiles of any size


@pytest.fixture(scope="module")
def row():
    return bench([(512, TOKENS)])[0]


def test_a_proven_kernel_has_a_ratio(row):
    assert row.verdict == "PASS"
    assert row.cost.graph.scatters == row.expected
    assert row.ratio() == pytest.approx(row.field.e2e_us / row.cost.e2e_us)
    assert row.cells()[COLUMNS.index("verdict")] == "PASS"
    assert "refused" not in row.cells()


def test_the_fields_kernel_has_the_figures_it_is_known_for(row):
    """One tile in one task, which waits for five reshapes that are outside of E2E."""
    assert row.field.e2e_us == pytest.approx(2.74, abs=0.005)
    assert row.field.e2e_with_prologue_us == pytest.approx(14.36, abs=0.005)
    assert (row.field.graph.tasks, row.field.graph.scatters) == (1, 2)


def test_the_floor_is_the_bytes_that_must_move(row):
    moved = TOKENS * (4 * 1024 + 4)
    assert row.floor_us == pytest.approx(moved / 1.6e6)


@pytest.mark.parametrize(
    ("factory", "tokens", "reason"),
    [
        ("lossy_norm_kernel", TILES, "scatters are executed, "),
        ("swapped_norm_kernel", TOKENS, "kernel swapped_norm_kernel"),
    ],
)
def test_a_wrong_kernel_gets_no_ratio(factory, tokens, reason, tmp_path, capsys):
    path = tmp_path / "rows.csv"
    arguments = ["--only", "field", "--tokens", str(tokens), "--kernel", f"hazard_kernels:{factory}"]
    assert model.main([*arguments, "--csv", str(path)]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("PyPTO cost model, not measured")
    assert printed.out.count("refused") == 1 + len(ROW_PRICES)
    assert "WRONG" in printed.out
    assert reason in printed.err
    (kept,) = csv.DictReader(path.read_text().splitlines())
    assert kept["ratio_0"] == ""
    assert reason in kept["verdict"]


def test_assembled_runs_are_golden_and_need_no_index():
    scatter, assemble = assembled.bench()
    assert (scatter.verdict, assemble.verdict) == ("PASS", "PASS")
    graphs = scatter.cost.graph, assemble.cost.graph
    assert [graph.chain_depth for graph in graphs] == [1, 1]
    assert graphs[0].tasks == graphs[1].tasks == graphs[1].operations["COPY_OUT"] == graphs[1].operations["COPY_IN"]
    assert graphs[0].operations["COPY_IN"] == 2 * graphs[0].tasks
    assert assemble.gain > 1


def test_rows_are_only_added(row, tmp_path):
    path = tmp_path / "rows.csv"
    results.append(path, [row.record()])
    once = path.read_text()
    results.append(path, [row.record(), row.record()])
    assert path.read_text().startswith(once)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert len(rows) == 3
    assert {kept["label"] for kept in rows} == {"PyPTO cost model, not measured"}
    with pytest.raises(ValueError, match=r"columns other, which results\.COLUMNS does not name"):
        results.append(path, [{"other": 1}])
    assert len(path.read_text().splitlines()) == 4
    path.write_text("some,other\n")
    with pytest.raises(ValueError, match="other columns"):
        results.append(path, [row.record()])


def test_numbers_are_at_least_one(capsys):
    with pytest.raises(SystemExit):
        model.main(["--tokens", "0"])
    assert "at least 1" in capsys.readouterr().err


def test_pictures_are_drawn_from_the_files_alone(row, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    rows, swimlane = tmp_path / "rows.csv", tmp_path / "swimlane.csv"
    arguments = ["--csv", str(rows), "--swimlane", str(swimlane), "--to", str(tmp_path)]
    assert plot.main(arguments) == 2
    assert f"there is no {rows}" in capsys.readouterr().err
    results.append(rows, [row.record()])
    model.write_swimlane(swimlane, {"ours": row.cost, "field's": row.field}, row.floor_us)
    assert plot.main(arguments) == 0
    for name in ("ratio.png", "swimlane.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    tasks = list(csv.DictReader(swimlane.read_text().splitlines()))
    assert len(tasks) == row.cost.graph.tasks + row.field.graph.tasks
    assert max(float(task["end_us"]) for task in tasks) == pytest.approx(row.field.e2e_us, abs=1e-3)


def norm_call():
    source, cache = torch.zeros(3, 2, 8).half(), torch.zeros(2, 4, 2, 8).half()
    return source, cache, torch.tensor([0, 5, -1]), source.clone(), cache.clone()


def test_the_sink_launches_nothing_and_leaves_nothing_behind():
    before = runtime._on_npu, planning.choose_run_mode
    call = norm_call()
    with host.sink():
        planned = plan(*call)
        assert planned.run_mode == "npu"
        planned.run()
    assert not call[1].any()
    assert (runtime._on_npu, planning.choose_run_mode) == before
    assert plan(*call).run_mode == "sim"


def test_torch_operations_are_counted_apart_from_views():
    numbers = torch.arange(6)
    assert host.count(lambda: (numbers + 1).view(2, 3)[0]) == (1, 2)
    assert host.count(lambda: numbers.add_(1)) == (1, 0)


def test_a_shared_row_index_leaves_no_torch_operation_to_a_layer(monkeypatch):
    monkeypatch.setattr(host, "ROUNDS", 1)
    monkeypatch.setattr(host, "SECONDS_A_ROUND", 1e-4)
    caches = [torch.zeros(4, 4, 8, 16).half() for _ in range(2)]
    sources = [torch.zeros(3, 2, 32).half() for _ in range(2)]
    given = {"key": sources[0], "key_cache": caches[0], "value": sources[1], "value_cache": caches[1]}
    given |= {"slot_mapping": torch.tensor([0, 5, -1]), "cache_mode": "PA_NZ"}
    with host.sink():
        figures = {figure.what: figure for figure in host.call_figures("pa_nz", given, shares=True)}
    index = figures["row_index(...), once a step"].operations
    assert index > 0
    assert figures["call"].operations == figures["plan.run()"].operations == index
    assert figures["call, row index shared"].operations == figures["plan.run(), row index shared"].operations == 0


def test_the_parts_of_a_sim_call_make_up_its_time():
    first, second = sim.bench(sim.Case(33, 3, 16))
    assert (first.tile, first.launches) == (16, 1)
    assert min(first.parts["start"], first.parts["verdicts"], first.parts["values"]) > 0
    assert second.parts["start"] == second.parts["verdicts"] == 0
    for call in (first, second):
        assert 0 < call.rest < call.wall
        assert min(call.host_mib, call.worker_mib) > 50


def test_without_an_npu_there_is_a_sentence_and_no_figure(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    assert npu.main([]) == 2
    assert "bench npu needs an NPU and torch_npu, which cannot be imported here" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace())
    assert npu.main([]) == 2
    assert "torch_npu finds none on this host" in capsys.readouterr().err


class Device:
    """What the NPU harness asks of torch.npu, by a clock of its own: every launch takes 2 ms."""

    clock = 0.0

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.time = Device.clock

        def elapsed_time(self, end):
            return end.time - self.time

    @staticmethod
    def synchronize():
        pass

    @staticmethod
    def get_device_name():
        return "a device of the tests"


def put(call: npu.Call) -> Callable[[], None]:
    def write() -> None:
        Device.clock += 2
        for cache, source in ((call.key_cache, call.key), (call.value_cache, call.value)):
            cache.view(-1, 2, 256)[call.slots.long()] = source

    return write


def refuses(call: npu.Call) -> Callable[[], None]:
    raise RuntimeError("not this dtype")


def test_the_npu_harness_times_launches_and_refuses_wrong_ones():
    candidates = {"right": put, "wrong": lambda call: lambda: None, "refuses": refuses}
    right, wrong, refused = npu.bench(5, 2, Device, "cpu", candidates)
    assert right.times == (2,) * npu.ROUNDS
    assert right.gb_per_s == pytest.approx(5 * 4100 / 2 / 1e6)
    assert right.roof_percent == pytest.approx(100 * 5 * 4100 / 2 / 1.6e9)
    assert right.record()["verdict"] == "PASS"
    assert (wrong.times, refused.times) == ((), ())
    assert "differ" in wrong.cells()[-1]
    assert refused.cells()[-1] == "RuntimeError: not this dtype"
    assert "median_ms" not in wrong.record()
