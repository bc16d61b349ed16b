"""The worker process: what it contains, survives and leaves behind."""

import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest
import torch
from sim_calls import SLOW, call, kernel, wait_for
from wrong_kernels import ROW

from scatter_pa_kv_cache import SimulationError
from scatter_pa_kv_cache.gate import launch
from scatter_pa_kv_cache.sim_process import WORKER


@pytest.fixture
def restarted():
    """A test that wants a worker started in its own surroundings, and gone after it."""
    WORKER.close()
    yield
    WORKER.close()


# What PyPTO says


def test_nothing_reaches_the_terminal(capfd):
    call("talking")
    call("scatter", stage="verdicts")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("value", "shown"), [("1", True), pytest.param("0", False, marks=SLOW), pytest.param("", False, marks=SLOW)]
)
def test_a_variable_shows_it(capfd, monkeypatch, restarted, value, shown):
    monkeypatch.setenv("SCATTER_PA_KV_CACHE_VERBOSE", value)
    print("the host's own")
    call("talking")
    out, error = capfd.readouterr()
    assert out == "the host's own\n"
    for words in ("talk by print", "talk by stderr", "talk by descriptor", "talk by logging"):
        assert (words in error) is shown
    WORKER.close()
    assert capfd.readouterr() == ("", "")


# What goes wrong in it


def test_a_kernel_that_does_not_parse():
    with pytest.raises(
        SimulationError, match=r"kernel unparsable_kernel.*\nRenderedParserError: While is not"
    ) as caught:
        launch(kernel("unparsable"), "values", [torch.zeros(4, ROW).bfloat16()], {0: torch.zeros(4, ROW).bfloat16()})
    assert len(str(caught.value)) < 400
    call()


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("exit", "exit code 3"),
        ("abort", "SIGABRT"),
        pytest.param("fault", "SIGSEGV", marks=SLOW),
        pytest.param("leave", "SystemExit", marks=SLOW),
    ],
)
def test_a_kernel_that_ends_its_process(way, words):
    with pytest.raises(SimulationError, match=words) as caught:
        call("ending", way=way)
    assert "kernel ending_kernel (stage values)" in str(caught.value)
    assert way == "leave" or "these are the last words" in str(caught.value)
    call()


def test_a_factory_that_is_missing():
    with pytest.raises(SimulationError, match="has no attribute 'missing_kernel'"):
        call("missing")


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=SLOW)])
def test_it_is_killed_during_a_call(tmp_path, number):
    file = tmp_path / "mark"

    def kill():
        wait_for(file.exists)
        WORKER._process.send_signal(number)

    threading.Thread(target=kill).start()
    with pytest.raises(SimulationError, match=f"signal {number.name} in kernel stalling_kernel"):
        call("stalling", file=str(file), seconds=30)
    call()


def test_it_is_killed_between_calls():
    call()
    first = WORKER._process
    first.kill()
    first.wait()
    call()
    assert WORKER._process is not first


def test_an_interrupt_during_a_call(tmp_path):
    file = tmp_path / "mark"

    def interrupt():
        wait_for(file.exists)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        call("stalling", file=str(file), seconds=30)
    assert time.monotonic() - began < 20
    assert WORKER._process is None
    assert not own_folders()
    call()


def test_folders_of_dead_hosts_are_swept(monkeypatch, tmp_path, restarted):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = subprocess.Popen(["true"])
    dead.wait()
    for owner in (dead.pid, os.getppid(), "nobody"):
        (tmp_path / f"scatter-pa-sim-{owner}-x").mkdir()
    (tmp_path / f"scatter-pa-sim-{dead.pid}-link").symlink_to(tmp_path / "scatter-pa-sim-nobody-x")
    call()
    left = {path.name for path in tmp_path.iterdir()} - {WORKER._folder.name}
    kept = {f"scatter-pa-sim-{os.getppid()}-x", "scatter-pa-sim-nobody-x", f"scatter-pa-sim-{dead.pid}-link"}
    assert left == kept


def own_folders():
    return list(Path(tempfile.gettempdir()).glob(f"scatter-pa-sim-{os.getpid()}-*"))


@pytest.mark.parametrize(
    ("stage", "limit"), [("values", 0), pytest.param("values", 100, marks=SLOW), ("verdicts", 600)]
)
def test_no_room_for_its_files(stage, limit):
    call()
    hard = resource.prlimit(WORKER._process.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(WORKER._process.pid, resource.RLIMIT_FSIZE, (limit, hard))
    with pytest.raises(SimulationError, match="is full"):
        call(stage=stage)
    call()


def test_no_temp_folder(monkeypatch):
    WORKER.close()
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere/at/all")
    with pytest.raises(SimulationError, match=r"cannot be started.*/nowhere.*TMPDIR"):
        call()
    monkeypatch.undo()
    call()


def test_a_hostile_environment(tmp_path, monkeypatch, restarted):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name, value in {
        "TILE_FWK_OUTPUT_DIR": str(elsewhere),
        "TILEFWK_CONFIG_PATH": "/nowhere.json",
        "ASCEND_HOME_PATH": str(elsewhere),
        "PYPTO_HOME": "/nowhere",
        "PTO_TILE_LIB_CODE_PATH": "/nowhere",
        "PTO_DATADUMP_ENABLE": "1",
        "PYTHONPATH": "garbage:/nowhere::",
        "PYTHONWARNINGS": "error",
        "PYTHONINSPECT": "1",
        "LC_ALL": "nowhere",
    }.items():
        monkeypatch.setenv(name, value)
    call()
    call(stage="verdicts")
    assert not list(elsewhere.iterdir())


# Many calls


def test_threads_are_serialised():
    errors = []

    def work(seed):
        try:
            for number in range(4):
                call(seed=10 * seed + number)
        except BaseException as error:  # shown below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors


def test_it_outlives_the_thread_that_started_it():
    WORKER.close()
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    process = WORKER._process
    call()
    assert WORKER._process is process


def test_a_launch_larger_than_the_pipe():
    call(tokens=4, rows=2**17)  # 4 MB


def resident(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("calls", [30, pytest.param(300, marks=SLOW)])
def test_calls_leave_nothing_behind(calls, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for stage in ("values", "verdicts"):
        call(stage=stage)
    worker, host = WORKER._process.pid, os.getpid()
    folder = WORKER._folder

    def held():
        files = [len(os.listdir(f"/proc/{pid}/fd")) for pid in (worker, host)]
        return files, resident(worker), resident(host), sorted(path.name for path in folder.iterdir())

    before = held()
    for number in range(calls):
        call(stage="verdicts" if number % 10 == 0 else "values", seed=number)
    after = held()
    assert WORKER._process.pid == worker
    assert after[0] == before[0]
    growth = [(after[at] - before[at]) / 2**20 for at in (1, 2)]
    print(f"{calls} calls: the worker grew by {growth[0]:.1f} MB, the host by {growth[1]:.1f} MB; files {after[0]}")
    assert max(growth) < 16
    assert after[3] == before[3] == ["log"]
    assert (folder / "log").stat().st_size < 2**20
    assert not list(tmp_path.iterdir())
