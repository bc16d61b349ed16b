"""Whole programs that call sim: what they see, what they leave behind, and how they stop."""

import os
import signal
import subprocess
import sys

import _checkout
import pytest
from sim_calls import SLOW, wait_for

SCRIPT = """
import torch, scatter_pa_kv_cache as spkc
def write():
    torch.manual_seed(0)
    key, value = torch.randn(5, 2, 16).half(), torch.randn(5, 2, 8).half()
    key_cache, value_cache = torch.zeros(4, 4, 2, 16).half(), torch.zeros(4, 4, 2, 8).half()
    slots = torch.tensor([3, 0, 15, 8, 7], dtype=torch.int32)
    spkc.scatter_pa_kv_cache(key, key_cache, slots, value, value_cache)
    assert torch.equal(key_cache.view(16, 2, 16)[slots.long()], key)
    assert torch.equal(value_cache.view(16, 2, 8)[slots.long()], value)
    assert int((key_cache.view(16, -1) != 0).any(1).sum()) == 5
write()
"""
GREETING = 'print("the host is done", flush=True)\n'


@pytest.fixture
def program(tmp_path):
    """Starts a program in an empty working directory, with a temp folder of its own."""
    temp, here = tmp_path / "temp", tmp_path / "here"
    temp.mkdir()
    here.mkdir()
    started = []

    def start(*command, stdin=None, **variables):
        environment = os.environ | {"TMPDIR": str(temp), "PYTHONPATH": str(_checkout.ROOT)} | variables
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=here,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        if stdin is not None:
            process.stdin.write(stdin)
        process.stdin.close()
        process.stdin = None
        return process

    yield start, temp, here
    for process in started:
        process.kill()
        process.communicate()


def finish(process, code=0):
    out, error = process.communicate(timeout=90)
    assert process.returncode == code, error
    return out, error


@pytest.mark.parametrize("way", ["file", pytest.param("option", marks=SLOW), pytest.param("stdin", marks=SLOW)])
def test_any_program_may_call_it(program, tmp_path, way):
    start, temp, here = program
    if way == "file":
        (tmp_path / "script.py").write_text(SCRIPT + GREETING)
        process = start("../script.py", PYTHONPATH=f"{_checkout.ROOT}:relative/entry:/nowhere")
    elif way == "option":
        process = start("-c", SCRIPT + GREETING, PYTHONPATH=os.path.relpath(_checkout.ROOT, here))
    else:
        process = start("-", stdin=SCRIPT + GREETING)
    assert finish(process) == ("the host is done\n", "")
    assert not list(here.iterdir())
    assert not list(temp.iterdir())


def test_fork_after_use(program):
    start, temp, _ = program
    forked = """
import os, signal
child = os.fork()
signal.alarm(60)
write()
if child == 0:
    write()
    raise SystemExit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
write()
"""
    assert finish(start("-c", SCRIPT + forked + GREETING)) == ("the host is done\n", "")
    assert not list(temp.iterdir())


STALL = """
from sim_calls import call
call("stalling", file={file!r}, seconds=20)
"""


def stall(program, tmp_path):
    """A program amid a call, and the process id of its worker."""
    start, temp, _ = program
    file = tmp_path / "mark"
    path = f"{_checkout.ROOT}:{_checkout.ROOT / 'tests'}"
    process = start("-c", STALL.format(file=str(file)), PYTHONPATH=path)
    wait_for(lambda: file.exists() and file.read_text())
    assert len(list(temp.iterdir())) == 1
    return process, int(file.read_text())


def test_an_interrupt_at_the_terminal(program, tmp_path):
    process, _ = stall(program, tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    _, error = finish(process, -signal.SIGINT)
    assert error.strip().splitlines()[-1] == "KeyboardInterrupt"
    assert not list(program[1].iterdir())


@pytest.mark.slow
def test_a_host_that_is_killed_is_swept_up_after(program, tmp_path):
    start, temp, _ = program
    process, worker = stall(program, tmp_path)
    process.kill()
    process.wait()
    os.kill(worker, signal.SIGKILL)
    assert len(list(temp.iterdir())) == 1
    finish(start("-c", SCRIPT))
    assert not list(temp.iterdir())


@pytest.mark.slow
def test_a_host_that_is_killed_between_calls(program):
    """Its worker goes and takes its folder along."""
    start, temp, _ = program
    finish(start("-c", SCRIPT + "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), -signal.SIGKILL)
    wait_for(lambda: not list(temp.iterdir()))


@pytest.mark.slow
def test_a_host_without_an_end(program):
    start, temp, _ = program
    finish(start("-c", SCRIPT + "import os; os._exit(3)"), 3)
    wait_for(lambda: not list(temp.iterdir()))
