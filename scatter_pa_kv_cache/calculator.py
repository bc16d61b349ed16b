"""PyPTO's calculator: the C++ library that computes values for the interpreter, built once and kept on disk.

The wheel of pypto ships it as source and builds it anew in every process; here it is built with g++ into a cache
folder, under a name that tells pypto, torch, the compiler and the source apart.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from .errors import SimulationError


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/scatter_pa_kv_cache``, by default below ``~/.cache``; made with mode 700 if missing.

    Raises SimulationError where it cannot be made, or where others could put a library into it.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base if os.path.isabs(base) else os.path.expanduser("~/.cache"))
    folder = root / "scatter_pa_kv_cache"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        safe = _only_mine(folder)
    except OSError as error:
        raise SimulationError(
            f"the cache folder {folder} cannot be made ({error.strerror}): set XDG_CACHE_HOME to a writable folder."
        ) from error
    if not safe:
        raise SimulationError(
            f"the cache folder {folder} must belong to you and be writable by you alone, because a library is loaded "
            "from it: fix its owner and mode, or set XDG_CACHE_HOME to another folder."
        )
    return folder


def library() -> Path:
    """Path of the built calculator, building it first if there is none for these versions.

    Raises SimulationError where there is no compiler, no place to write, or the build fails.
    """
    source = _package_folder("pypto") / "lib" / "calculator"
    folder = cache_folder()
    compiler = shutil.which("g++")
    try:
        # without a compiler a library that any compiler built will do
        version = _compiler_version(compiler) if compiler else "*"
        pattern = f"calculator-{_versions(source)}-{version}-*.so"
        found = _whole(folder, pattern)
        if found:
            return found
        if compiler is None:
            raise SimulationError(
                "there is no g++ on the PATH, and sim builds PyPTO's calculator with it: install g++ 9.4 or newer "
                "(on Debian and Ubuntu: apt-get install g++)."
            )
        with _locked(folder):
            return _whole(folder, pattern) or _build(compiler, source, folder, pattern)
    except OSError as error:
        raise SimulationError(
            f"PyPTO's calculator could not be built into {folder} ({error}): that folder must be writable and have "
            "room for 10 MB; XDG_CACHE_HOME names another."
        ) from error


def _whole(folder: Path, pattern: str) -> Path | None:
    """A library of that name that nobody else could write and whose bytes match the digest in its name."""
    for path in folder.glob(pattern):
        if _only_mine(path) and path.stem.rpartition("-")[2] == _digest(path.read_bytes()):
            return path
    return None


def _build(compiler: str, source: Path, folder: Path, pattern: str) -> Path:
    for left in folder.glob("build-*"):
        shutil.rmtree(left, ignore_errors=True)
    for damaged in folder.glob(pattern):
        damaged.unlink()
    _say(f"building PyPTO's calculator into {folder}, once for these versions; this takes about 40 seconds.")
    torch = _package_folder("torch")
    with tempfile.TemporaryDirectory(prefix="build-", dir=folder) as work:
        built = Path(work) / "calculator.so"
        command = [
            *(compiler, "-std=c++17", "-O1", "-shared", "-fPIC", "-D__DEVICE__", "-D_GLIBCXX_USE_CXX11_ABI=1"),
            *("-isystem", f"{torch}/include", "-isystem", f"{torch}/include/torch/csrc/api/include"),
            *("-isystem", f"{source}/include", *(str(file) for file in sorted((source / "src").glob("*.cpp")))),
            *(f"-L{torch}/lib", f"-L{source.parent}", "-lc_sec", "-Wl,--no-as-needed", "-ltorch_cpu", "-lc10"),
            *("-o", str(built)),
        ]
        # TMPDIR: what a killed compiler leaves behind is swept with the build folder
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=os.environ | {"TMPDIR": work}
        )
        if done.returncode:
            tail = "\n".join(done.stderr.strip().splitlines()[-12:])
            raise SimulationError(
                f"g++ could not build PyPTO's calculator (exit code {done.returncode}); it needs g++ 9.4 or newer and "
                f"about 1.5 GB of memory. Its last words:\n{tail}"
            )
        built.chmod(0o600)
        path = folder / pattern.replace("*", _digest(built.read_bytes()))
        os.replace(built, path)
    return path


@contextmanager
def _locked(folder: Path):
    """One process at a time; the lock falls with its process."""
    with open(folder / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("waiting for another process that builds PyPTO's calculator.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _only_mine(path: Path) -> bool:
    status = path.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _say(text: str) -> None:
    print(f"scatter_pa_kv_cache: {text}", file=sys.stderr, flush=True)


def _versions(source: Path) -> str:
    """Digest of the packages and the source that the library depends on."""
    packages = [f"{name} {importlib.metadata.version(name)}" for name in ("pypto", "torch")]
    files = [file.read_bytes() for file in sorted((source / "src").glob("*.*"))]
    return _digest(b"\0".join([*(text.encode() for text in packages), platform.machine().encode(), *files]))


def _compiler_version(compiler: str) -> str:
    answer = subprocess.run([compiler, "-dumpfullversion"], capture_output=True, text=True, errors="replace")
    return re.sub(r"[^0-9.]", "", answer.stdout) or "unknown"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _package_folder(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise SimulationError(f"sim needs the package {name}, which is not installed: pip install {name}.")
    return Path(spec.origin).parent
