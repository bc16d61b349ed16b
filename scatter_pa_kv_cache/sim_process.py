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

VERBOSE_VARIABLE = "SCATTER_PA_KV_CACHE_VERBOSE"
_FOLDER = "scatter-pa-sim-"
_BOOT = """
import sys
sys.path[:] = sys.argv[4:]
from multiprocessing.connection import Connection
from scatter_pa_kv_cache.sim_worker import serve
serve(Connection(int(sys.argv[1])), sys.argv[2], sys.argv[3])
"""
# variables that would move PyPTO's files, change its configuration, make it look for a device, or stop Python
_HOSTILE = ("ASCEND_", "ENABLE_", "PTO_", "PYPTO_", "TILE_FWK_", "TILEFWK_", "PYTHONWARNINGS", "PYTHONINSPECT")


class Worker:
    """One worker process. Calls are serialised by a lock: the interpreter has one state.

    It starts with the first call and after any failure. Its output goes to a log in its folder, or to the host
    program's stderr where $SCATTER_PA_KV_CACHE_VERBOSE is set (to anything but 0) when it starts.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._folder: Path | None = None

    def run(self, launch: Launch) -> Verdicts:
        """Run one launch. Raises SimulationError with PyPTO's words; the next call gets a new worker."""
        with self._lock:
            try:
                if self._process is None or self._process.poll() is not None:
                    self._stop(kill=True)
                    self._start()
                answer = self._ask(launch)
                if isinstance(answer, Verdicts):
                    return answer
                raise SimulationError(
                    f"PyPTO failed on kernel {launch.kernel.name} (stage {launch.stage}); "
                    f"{VERBOSE_VARIABLE}=1 shows its output.\n{answer}"
                )
            except BaseException:
                self._stop(kill=True)
                raise

    def close(self) -> None:
        """End the worker and remove its folder."""
        with self._lock:
            self._stop(kill=False)

    def forget(self) -> None:
        """In a forked child: the worker belongs to the parent."""
        self.__init__()  # type: ignore[misc]

    def _start(self) -> None:
        library = calculator.library()
        try:
            _sweep()
            self._folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-"))
            self._pipe, theirs = Pipe()
            with theirs, open(self._folder / "log", "wb") as log:
                self._process = self._spawn(theirs.fileno(), log.fileno(), str(library), str(self._folder))
        except OSError as error:
            raise SimulationError(
                f"the sim worker cannot be started: {error}. It works in the temp folder, which must be writable and "
                "have room; TMPDIR names another."
            ) from error
        answer = self._ask(None)
        if answer != "ready":
            raise SimulationError(f"the sim worker could not start; {VERBOSE_VARIABLE}=1 shows why.\n{answer}")

    @staticmethod
    def _spawn(pipe: int, log: int, library: str, folder: str) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_HOSTILE)}
        environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        output = log if os.environ.get(VERBOSE_VARIABLE, "0") in ("", "0") else 2
        return subprocess.Popen(
            [sys.executable, "-c", _BOOT, str(pipe), library, folder, *map(os.path.abspath, sys.path)],
            pass_fds=(pipe,),
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # an interrupt at the terminal is the host program's to handle
        )

    def _ask(self, launch: Launch | None) -> Verdicts | str:
        """The worker's answer to a launch, or to having been started."""
        assert self._pipe is not None
        assert self._process is not None
        try:
            if launch is not None:
                self._pipe.send(launch)
            return self._pipe.recv()
        except (EOFError, OSError):  # it has closed its end, perhaps amid a message
            code = self._process.wait()
            ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            doing = f"kernel {launch.kernel.name} (stage {launch.stage})" if launch else "its first steps"
            raise SimulationError(f"the sim worker ended with {ended} in {doing}.{self._last_words()}") from None

    def _last_words(self) -> str:
        assert self._folder is not None
        with contextlib.suppress(OSError):
            lines = (self._folder / "log").read_text(errors="replace").strip().splitlines()[-8:]
            if lines:
                return "\nThe end of its log:\n" + "\n".join(lines)
        return ""

    def _stop(self, kill: bool) -> None:
        process, pipe, folder = self._process, self._pipe, self._folder
        self._process = self._pipe = self._folder = None
        try:
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
        finally:
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
