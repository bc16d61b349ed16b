"""The sim worker seen from the host program: started when first needed, restarted after any failure, gone at exit."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from . import calculator
from .errors import SimulationError
from .sim_worker import Launch, Verdicts

_FOLDER = "scatter-pa-sim-"
_BOOT = """
import sys
from multiprocessing.connection import Connection
from scatter_pa_kv_cache.sim_worker import serve
serve(Connection(int(sys.argv[1])), sys.argv[2], sys.argv[3])
"""
# what would move PyPTO's files, change its configuration or look for a device
_HOSTILE = ("TILE_FWK_OUTPUT_DIR", "TILEFWK_CONFIG_PATH", "ASCEND_HOME_PATH", "PYTHONSTARTUP", "PYTHONINSPECT")


class Worker:
    """One worker process. Calls are serialised by a lock: the interpreter has one state."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._folder: Path | None = None

    def run(self, launch: Launch) -> Verdicts:
        """Run one launch. Raises SimulationError with PyPTO's words; the next call gets a new worker."""
        with self._lock:
            try:
                if self._process is None:
                    self._start()
                assert self._pipe is not None
                self._pipe.send(launch)
                answer = self._receive()
            except BaseException:
                self._stop(kill=True)
                raise
            if isinstance(answer, Verdicts):
                return answer
            self._stop(kill=False)
            raise SimulationError(
                f"PyPTO failed on kernel {launch.kernel.name} (stage {launch.stage}):\n{answer.strip()}"
            )

    def close(self) -> None:
        """End the worker and remove its folder."""
        with self._lock:
            self._stop(kill=False)

    def forget(self) -> None:
        """In a forked child: the worker belongs to the parent."""
        self.__init__()  # type: ignore[misc]

    def _start(self) -> None:
        library = calculator.library()
        _sweep()
        self._folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-"))
        self._pipe, theirs = Pipe()
        environment = {name: value for name, value in os.environ.items() if name not in _HOSTILE}
        environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        verbose = bool(os.environ.get("SCATTER_PA_KV_CACHE_VERBOSE"))
        with open(self._folder / "log", "wb") as log, theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(theirs.fileno()), str(library), str(self._folder)],
                pass_fds=(theirs.fileno(),),
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=2 if verbose else log,
                stderr=None if verbose else log,
                start_new_session=True,  # an interrupt at the terminal is the host program's to handle
            )
        answer = self._receive()
        if answer != "ready":
            raise SimulationError(f"the sim worker could not start:\n{str(answer).strip()}")

    def _receive(self) -> Verdicts | str:
        assert self._pipe is not None
        assert self._process is not None
        try:
            return self._pipe.recv()
        except (EOFError, ConnectionResetError):
            code = self._process.wait()
            ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise SimulationError(
                f"the sim worker ended with {ended} while it ran PyPTO.{self._last_words()}"
            ) from None

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            assert self._folder is not None
            lines = (self._folder / "log").read_text(errors="replace").strip().splitlines()[-8:]
            if lines:
                return " Its last words:\n" + "\n".join(lines)
        return ""

    def _stop(self, kill: bool) -> None:
        process, pipe, folder = self._process, self._pipe, self._folder
        self._process = self._pipe = self._folder = None
        if pipe is not None:
            pipe.close()
        if process is not None:
            if kill:
                process.kill()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _sweep() -> None:
    """Remove the folders of workers whose host program died without a word."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        owner = folder.name.removeprefix(_FOLDER).partition("-")[0]
        if owner.isdigit() and not _alive(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


WORKER = Worker()
atexit.register(WORKER.close)
os.register_at_fork(after_in_child=WORKER.forget)
