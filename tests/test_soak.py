"""One process for a long time: memory, open files and temp folders do not grow."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path

import _checkout  # noqa: F401
import pytest
import rule_cases
import torch
from sim_cases import Case, twin

from scatter_pa_kv_cache import ScatterPaKvCacheError, plan, scatter_pa_kv_cache
from scatter_pa_kv_cache.sim_process import WORKER

MEGABYTE = 2**20
PLANS, SIM_CALLS = 10_000, 300


def resident(pid: int) -> float:
    """Megabytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MEGABYTE


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def temp_folders() -> set[str]:
    """Those of this process."""
    return {path.name for path in Path(tempfile.gettempdir()).glob(f"*{os.getpid()}-*")}


def in_some_number_of_blocks(case: Case, number: int) -> Case:
    """The same call, of a signature of its own where the number is new."""
    grown = twin(case)
    for name in ("key_cache", "value_cache"):
        if isinstance(case.get(name), torch.Tensor) and case[name].dim():
            grown[name] = case[name].new_zeros((len(case[name]) + number, *case[name].shape[1:]))
    return grown


@pytest.mark.slow
def test_plans(capsys: pytest.CaptureFixture[str]) -> None:
    """Accepted calls of ever new shapes, and refused ones among them."""
    pid = os.getpid()

    def some(first: int, stop: int) -> None:
        for number in range(first, stop):
            base = rule_cases.BASES[number % len(rule_cases.BASES)]
            case = in_some_number_of_blocks(base(), number // len(rule_cases.BASES))
            plan(**case)
            if number % 10 == 0:
                with pytest.raises(ScatterPaKvCacheError):
                    plan(**case | {"slot_mapping": case["slot_mapping"].half()})

    some(0, PLANS // 2)  # fills what is remembered of calls
    gc.collect()
    before = resident(pid), open_files(pid)
    some(PLANS // 2, PLANS)
    gc.collect()
    after = resident(pid), open_files(pid)
    with capsys.disabled():
        print(f"\n{PLANS} plans: {after[0] - before[0]:+.1f} MB in the second half, {after[1]} files")
    assert after[0] - before[0] < 32
    assert after[1] == before[1]


@pytest.mark.slow
def test_sim_calls(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def some(calls: int) -> None:
        for number in range(calls):
            scatter_pa_kv_cache(**rule_cases.BASES[number % len(rule_cases.BASES)]())
            if number % 10 == 0:
                with pytest.raises(ScatterPaKvCacheError):
                    scatter_pa_kv_cache(**rule_cases.norm() | {"soc": "A1"})

    some(2 * len(rule_cases.BASES))
    assert WORKER._process is not None
    pids = os.getpid(), WORKER._process.pid
    gc.collect()
    memory, files, folders = [resident(pid) for pid in pids], [open_files(pid) for pid in pids], temp_folders()
    assert len(folders) == 1
    some(SIM_CALLS)
    gc.collect()
    assert WORKER._process.pid == pids[1]
    grown = [resident(pid) - before for pid, before in zip(pids, memory, strict=True)]
    with capsys.disabled():
        print(
            f"\n{SIM_CALLS} sim calls: host {grown[0]:+.1f} MB, worker {grown[1]:+.1f} MB, "
            f"{[open_files(pid) for pid in pids]} files, {len(temp_folders())} temp folders"
        )
    assert max(grown) < 32
    assert [open_files(pid) for pid in pids] == files
    assert temp_folders() == folders
    assert not list(tmp_path.iterdir())
