"""The process that runs PyPTO's interpreter: it alone imports what can abort, leak or print.

It serves launches over a pipe, in a working directory of its own that it removes when its parent goes away. It ends
with its first failure: one leaves the interpreter unusable.
"""

from __future__ import annotations

import contextlib
import csv
import ctypes
import os
import re
import shutil
import sys
import traceback
from collections import Counter
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .errors import SimulationError
from .runtime import Kernel

_NATIVE_FRAME = re.compile(r"lib\S+\(.*\[0x")


@dataclass(frozen=True, slots=True)
class Parcel:
    """A tensor on its way between processes: raw bytes, for which numpy has no type."""

    dtype: str
    shape: tuple[int, ...]
    data: Any  # bytes or a bytearray

    @classmethod
    def pack(cls, tensor) -> Parcel:
        import torch

        flat = tensor.detach().contiguous().view(-1).view(torch.uint8) if tensor.numel() else tensor.new_empty(0)
        return cls(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), flat.numpy().tobytes())

    def unpack(self):
        import torch

        dtype = getattr(torch, self.dtype)
        if not self.data:
            return torch.empty(self.shape, dtype=dtype, device="cpu")
        return torch.frombuffer(bytearray(self.data), dtype=dtype).view(self.shape)


@dataclass(frozen=True, slots=True)
class Alias:
    """A parameter on the memory of an earlier one, as the in/out pair of a cache is."""

    parameter: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """One run of one kernel. goldens: parameter number -> what the kernel should leave there."""

    kernel: Kernel
    stage: str
    tensors: tuple[Parcel | Alias, ...]
    goldens: dict[int, Parcel]


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What came of a launch. values: parameter number -> computed tensor.

    rows: compared outputs of each pass, by name; failed: (pass, output, verdict) of every row that is not PASS.
    """

    values: dict[int, Parcel]
    rows: dict[str, int]
    failed: tuple[tuple[str, str, str], ...]


def serve(pipe: Connection, library: str, folder: str) -> None:
    """Answer launches until the parent closes the pipe; after a failure answer with the text and wait for that."""
    os.set_inheritable(pipe.fileno(), False)
    try:
        _prepare(library)
        pipe.send("ready")
        while (launch := _next(pipe)) is not None:
            pipe.send(_run(launch))
    except BaseException as error:
        with contextlib.suppress(OSError):  # the disk may be full
            traceback.print_exc()
            _flush()
        with contextlib.suppress(OSError):  # the parent may be gone; if not, it has the log to read
            pipe.send(_reason(error))
            _next(pipe)
    finally:
        os.chdir("/")
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)  # the interpreter's threads and a poisoned state are left where they are


def _next(pipe: Connection) -> Launch | None:
    try:
        return pipe.recv()
    except EOFError:
        return None


def _reason(error: BaseException | None) -> str:
    """The error and those that it came from, first things first, without frames and without repetition."""
    reasons: list[str] = []
    while error is not None:
        text = str(error) if isinstance(error, SimulationError) else f"{type(error).__name__}: {error}"
        lines = [line for line in text.strip().splitlines() if not _NATIVE_FRAME.match(line)]
        if not any(reason.endswith(lines[-1]) for reason in reasons):
            reasons.insert(0, "\n".join(lines))
        error = error.__cause__ or error.__context__
    return "\n".join(reasons)


def _prepare(library: str) -> None:
    """Load the calculator, and let the interpreter see the tensors of the host instead of a device's zeros."""
    import pypto
    import torch  # noqa: F401  # the calculator needs its symbols
    from pypto import pypto_impl
    from pypto._utils import BuildOnlineManager
    from pypto.frontend.parser import entry

    ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    BuildOnlineManager().calculator_loaded = True

    def host_data(tensors):
        if pypto.get_verify_options().get("enable_pass_verify"):
            pypto_impl.SetVerifyData(entry._pto_to_tensor_data(tensors), [], entry._pto_verify_datas.get_data())

    entry.JitCallableWrapper._setup_verify_data = staticmethod(host_data)


def _run(launch: Launch) -> Verdicts:
    import pypto
    from pypto.runtime import _pto_verify_datas

    kernel = launch.kernel.build(launch.stage)
    tensors: list[Any] = []
    for parcel in launch.tensors:
        if isinstance(parcel, Alias):
            tensors.append(tensors[parcel.parameter].view(parcel.shape))
        else:
            tensors.append(parcel.unpack())
    goldens = [launch.goldens[i].unpack() if i in launch.goldens else None for i in range(len(tensors))]
    pypto.set_verify_golden_data(goldens=goldens)
    kernel(*tensors)
    _pto_verify_datas.reset()
    _flush()
    verdicts = _read_verdicts(launch)
    shutil.rmtree("output")
    return verdicts


def _flush() -> None:
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)  # PyPTO's files and output


def _read_verdicts(launch: Launch) -> Verdicts:
    rows: list[dict[str, str]] = []
    for brief in Path("output").glob("*/verify_*/verify_result_brief.csv"):
        with open(brief, newline="", encoding="utf-8") as file:
            rows += csv.DictReader(file)
    if not rows or None in rows[-1].values():
        raise SimulationError(
            "PyPTO saved no verdicts, or not all: the kernel asks for none, or the temp folder (TMPDIR) is full."
        )
    values = {}
    for row in rows:
        if row["passName"] == "tensor_graph":
            number = int(row["ioflag"].removeprefix("output"))
            golden = launch.goldens[number]
            data = (brief.parent / "tensor_graph" / row["outputTensor"]).read_bytes()
            if len(data) != len(golden.data):
                raise SimulationError(
                    f"PyPTO saved {len(data)} bytes of parameter {number} and its golden has {len(golden.data)}: the "
                    "golden is of another shape or dtype, or the temp folder (TMPDIR) is full."
                )
            values[number] = Parcel(golden.dtype, golden.shape, data)
    return Verdicts(
        values=values,
        rows=dict(Counter(row["passName"] for row in rows)),
        failed=tuple(
            (row["passName"], row["ioflag"], row["verifyResult"]) for row in rows if row["verifyResult"] != "PASS"
        ),
    )
