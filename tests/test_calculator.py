"""The calculator library: built once, whole or not at all, with a clear word where it cannot be built.

A script takes g++'s place: it copies a library that the normal cache holds. One slow test builds for real.
"""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import _checkout
import pytest
from sim_calls import wait_for

from scatter_pa_kv_cache import SimulationError, calculator

ANSWER_VERSION = 'if [ "$1" = -dumpfullversion ]; then echo 99.1; exit 0; fi\n'
OUTPUT = 'for last; do :; done\necho $$ >> "$XDG_CACHE_HOME/runs"\n'  # g++'s last argument is the library
COPY = OUTPUT + 'cp "$GOOD" "$last"\n'
HALF = OUTPUT + 'head -c 1000 "$GOOD" > "$last"\n'


@pytest.fixture(scope="session")
def good():
    """A working library: of the user's cache, built there if need be."""
    return calculator.library()


@pytest.fixture
def cache(tmp_path, monkeypatch, good):
    """An empty cache folder and a PATH with a compiler that is asked for by :func:`compiler`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("GOOD", str(good))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    (tmp_path / "bin").mkdir()
    return tmp_path / "scatter_pa_kv_cache"


def compiler(cache, script):
    path = cache.parent / "bin" / "g++"
    path.write_text("#!/bin/sh\n" + ANSWER_VERSION + script)
    path.chmod(0o755)


def no_compiler(monkeypatch, cache):
    monkeypatch.setenv("PATH", str(cache.parent / "nothing"))


def runs(cache):
    """Process ids of the compilers that were run."""
    return [int(line) for line in (cache.parent / "runs").read_text().split()]


def contents(cache):
    return sorted(path.name for path in cache.iterdir())


def builder():
    """A process that needs the library. It prints its path, or fails."""
    code = "from scatter_pa_kv_cache import calculator; print(calculator.library())"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(_checkout.ROOT)},
    )


def test_it_is_built_once_and_says_so(cache, good, capfd):
    compiler(cache, COPY)
    first = calculator.library()
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "building" in said.err
    assert str(cache) in said.err
    assert "seconds" in said.err
    assert first.parent == cache
    assert first.read_bytes() == good.read_bytes()
    assert calculator.library() == first
    assert capfd.readouterr() == ("", "")
    assert contents(cache) == [first.name, "lock"]
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert stat.S_IMODE(first.stat().st_mode) == 0o600


def test_ten_processes_at_once_get_one_good_build(cache, good):
    compiler(cache, "sleep 1\n" + COPY)
    processes = [builder() for _ in range(10)]
    answers = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * 10
    (path,) = {out for out, _ in answers}
    assert Path(path.strip()).read_bytes() == good.read_bytes()
    assert len(runs(cache)) == 1
    assert sum("building" in error for _, error in answers) == 1
    assert all(error == "" or "building" in error or "waiting" in error for _, error in answers)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_builder_that_is_stopped_leaves_no_half_library(cache, number):
    compiler(cache, HALF + "exec sleep 30\n")
    process = builder()
    wait_for(lambda: list(cache.glob("build-*/calculator.so")))
    process.send_signal(number)
    process.communicate(timeout=10)
    assert process.returncode != 0
    if number != signal.SIGINT:  # then Python has ended the compiler
        os.kill(runs(cache)[0], signal.SIGKILL)
    assert not list(cache.glob("calculator-*"))
    assert bool(list(cache.glob("build-*"))) is (number != signal.SIGINT)

    compiler(cache, COPY)
    built = calculator.library()
    assert contents(cache) == [built.name, "lock"]


@pytest.mark.parametrize("damage", ["truncated", "empty", "changed", "writable by others"])
def test_a_damaged_library_is_built_anew(cache, good, damage):
    compiler(cache, COPY)
    path = calculator.library()
    content = path.read_bytes()
    if damage == "writable by others":
        path.chmod(0o666)
    else:
        path.write_bytes({"truncated": content[:-7], "empty": b"", "changed": content[:-1] + b"?"}[damage])
    assert calculator.library().read_bytes() == good.read_bytes()
    assert len(runs(cache)) == 2
    assert len(contents(cache)) == 2


@pytest.mark.parametrize("part", ["compiler", "torch", "pypto"])
def test_a_library_for_other_versions_is_not_taken(cache, monkeypatch, part):
    compiler(cache, COPY)
    first = calculator.library()
    if part == "compiler":
        compiler(cache, COPY)
        script = cache.parent / "bin" / "g++"
        script.write_text(script.read_text().replace("99.1", "99.2"))
    else:
        version = calculator.importlib.metadata.version
        other = lambda name: "0.0.1" if name == part else version(name)  # noqa: E731
        monkeypatch.setattr(calculator.importlib.metadata, "version", other)
    assert calculator.library() != first
    assert first.exists()


def test_no_compiler_and_no_library(cache, monkeypatch):
    no_compiler(monkeypatch, cache)
    with pytest.raises(SimulationError, match=r"no g\+\+ on the PATH.*apt-get install g\+\+"):
        calculator.library()


def test_no_compiler_but_a_library(cache, monkeypatch, capfd):
    compiler(cache, COPY)
    built = calculator.library()
    capfd.readouterr()
    no_compiler(monkeypatch, cache)
    assert calculator.library() == built
    assert capfd.readouterr() == ("", "")


def test_a_failing_compiler_has_the_last_word(cache):
    compiler(cache, HALF + "echo first words >&2; seq 100 >&2; printf 'no space \\377 left' >&2; exit 4\n")
    with pytest.raises(SimulationError, match=r"exit code 4.*g\+\+ 9.4") as caught:
        calculator.library()
    assert "no space" in str(caught.value)
    assert "first words" not in str(caught.value)
    assert contents(cache) == ["lock"]
    compiler(cache, COPY)
    assert calculator.library().exists()


@pytest.mark.parametrize("script", ["exit 0\n", None], ids=["writes nothing", "is no program"])
def test_a_compiler_that_is_none(cache, script):
    compiler(cache, script or "")
    if script is None:
        (cache.parent / "bin" / "g++").write_bytes(b"\0\1\2")
    with pytest.raises(SimulationError, match="could not be built"):
        calculator.library()
    assert not list(cache.glob("calculator-*"))


def test_an_unusable_cache_home(cache, monkeypatch):
    for base in (__file__, "/proc/nowhere"):
        monkeypatch.setenv("XDG_CACHE_HOME", base)
        with pytest.raises(SimulationError, match=r"cannot be made .*set XDG_CACHE_HOME to a writable folder"):
            calculator.library()


def test_a_cache_that_cannot_be_written(cache):
    compiler(cache, COPY)
    (cache / "lock").mkdir(parents=True)  # root may write anywhere but not here
    cache.chmod(0o700)
    with pytest.raises(SimulationError, match="must be writable"):
        calculator.library()


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_read_only_folders(cache, good):
    compiler(cache, COPY)
    cache.parent.chmod(0o500)
    with pytest.raises(SimulationError, match="cannot be made"):
        calculator.library()
    cache.parent.chmod(0o700)
    cache.mkdir(mode=0o500)
    with pytest.raises(SimulationError, match="must be writable"):
        calculator.library()
    cache.chmod(0o700)
    path = calculator.library()
    cache.chmod(0o500)
    assert calculator.library() == path
    cache.chmod(0o700)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o707])
def test_a_folder_that_others_can_write_is_refused(cache, mode):
    compiler(cache, COPY)
    calculator.library()
    cache.chmod(mode)
    with pytest.raises(SimulationError, match="writable by you alone"):
        calculator.library()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(cache):
    compiler(cache, COPY)
    calculator.library()
    os.chown(cache, 12345, -1)
    with pytest.raises(SimulationError, match="must belong to you"):
        calculator.library()


def test_the_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    home = tmp_path / "home" / ".cache" / "scatter_pa_kv_cache"
    assert calculator.cache_folder() == home
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert calculator.cache_folder() == home
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert calculator.cache_folder() == tmp_path / "xdg" / "scatter_pa_kv_cache"


@pytest.mark.slow
def test_a_real_build(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    process = builder()
    most = 0
    while process.poll() is None:
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        most = max(most, sum(path.stat().st_size for path in files if path.exists()))
        time.sleep(0.1)
    out, error = process.communicate()
    assert process.returncode == 0, error
    print(f"a build needed {most / 2**20:.1f} MB in the cache folder")
    assert most < 10 * 2**20
    program = "from sim_calls import call; call(stage='verdicts')"
    environment = os.environ | {"PYTHONPATH": f"{_checkout.ROOT}:{_checkout.ROOT / 'tests'}"}
    assert subprocess.run([sys.executable, "-c", program], env=environment).returncode == 0
    assert contents(tmp_path / "scatter_pa_kv_cache") == [Path(out.strip()).name, "lock"]
