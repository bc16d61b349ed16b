"""The command ``env``: what is here, and the one line that helps where something is missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from . import __version__
from .errors import SimulationError


def main() -> int:
    """Print the report. Returns 0 if at least one run mode can run here, else 1."""
    rows, remedies = report()
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print(f"{name:{width}}  {text}")
    for remedy in remedies:
        print(f"-> {remedy}")
    return 0 if any(name == "run mode" and not text.startswith("none") for name, text in rows) else 1


def report() -> tuple[list[tuple[str, str]], list[str]]:
    """Names with what was found, and a remedy for each thing that is missing."""
    remedies = []
    torch_version, pypto_version = _version("torch"), _version("pypto")
    rows = [
        ("scatter-pa-kv-cache", __version__),
        ("python", platform.python_version()),
        ("torch", torch_version or "missing"),
        ("pypto", pypto_version or "missing"),
        ("torch_npu", _version("torch_npu") or "missing (needed on an NPU only)"),
    ]
    if not torch_version:
        remedies.append("torch: pip install torch==2.13.0, the CPU build where there is no NPU")
    if not pypto_version:
        remedies.append("pypto: pip install pypto==0.2.0")
    cann = os.environ.get("ASCEND_HOME_PATH")
    rows.append(("CANN", cann or "not set up (ASCEND_HOME_PATH is unset)"))
    if find_spec("torch_npu") and not cann:
        remedies.append(
            "torch_npu without CANN breaks `import torch`: source CANN's set_env.sh, or set "
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0, or uninstall torch_npu"
        )
    npu = bool(torch_version) and _npu_works(cann)
    rows.append(("NPU", "found" if npu else "none that torch can use"))
    compiler = shutil.which("g++")
    rows.append(("g++", _compiler(compiler) if compiler else "missing"))
    if not compiler:
        remedies.append("g++: apt-get install g++ (9.4 or newer); sim builds PyPTO's calculator with it, once")
    cache, built = _cache()
    rows.append(("cache folder", cache))
    if built is None:
        remedies.append("cache folder: set XDG_CACHE_HOME to a folder that you may write and nobody else")
    rows.append(("calculator", "built" if built else "not built yet: the first sim call takes about 40 seconds longer"))
    sim = bool(torch_version and pypto_version and (compiler or built) and built is not None)
    modes = [mode for mode, works in (("npu", npu and bool(pypto_version)), ("sim", sim)) if works]
    rows.append(("run mode", modes[0] if modes else "none can run here"))
    return rows, remedies


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _npu_works(cann: str | None) -> bool:
    if not cann:
        return False
    from .runtime import npu_available

    return npu_available()


def _compiler(path: str) -> str:
    answer = subprocess.run([path, "-dumpfullversion"], capture_output=True, text=True, check=False)
    return f"{answer.stdout.strip() or 'version unknown'} ({path})"


def _cache() -> tuple[str, bool | None]:
    """The folder in words, and whether a calculator is in it; None where the folder cannot be used."""
    from . import calculator

    try:
        folder: Path = calculator.cache_folder()
    except SimulationError as error:
        return str(error), None
    return str(folder), any(folder.glob("calculator-*.so"))
