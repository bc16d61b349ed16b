"""Run modes: which one a call gets, the kernel it names, and the launch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from .errors import InvalidParameterError

if TYPE_CHECKING:
    import torch

    from .plans import KernelPlan

RUN_MODES = ("npu", "sim")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel by the name and arguments of its factory: what can be hashed, kept and sent to the sim worker.

    factory: "package.module:function" of an importable module; it is called with ``arguments`` and ``stage=``, and
    returns an object decorated with ``pypto.frontend.jit``.
    """

    factory: str
    arguments: tuple[tuple[str, Any], ...]
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.factory, self.arguments)))

    def __hash__(self) -> int:
        return self._hash  # a launch looks its kernel up

    @property
    def name(self) -> str:
        return self.factory.rpartition(":")[2]

    def build(self, stage: str) -> Callable[..., None]:
        """The jit object for one stage of ``patterns.options.jit_options``. Imports pypto."""
        module, _, function = self.factory.partition(":")
        return getattr(importlib.import_module(module), function)(**dict(self.arguments), stage=stage)


def npu_available() -> bool:
    """Is there an NPU that torch_npu can use? False, without importing anything, where torch_npu was not imported."""
    import torch

    npu = getattr(torch, "npu", None)
    return npu is not None and bool(npu.is_available())


def choose_run_mode(run_mode: str | None, tensor: torch.Tensor) -> str:
    """``run_mode`` if given, else "npu" for tensors on an NPU and "sim" for all others.

    Raises InvalidParameterError where the tensors are not on the device that the mode runs on.
    """
    if run_mode not in (None, *RUN_MODES):
        raise InvalidParameterError(f'run_mode is {run_mode!r}: it must be "npu", "sim" or None.', "argument")
    device = tensor.device.type
    mode = run_mode or ("npu" if device == "npu" else "sim")
    if mode == "npu" and device != "npu":
        raise InvalidParameterError(
            f'run_mode is "npu" but key is on {device}: move the tensors to an NPU, or use run_mode="sim".', "argument"
        )
    if mode == "sim" and device != "cpu":
        raise InvalidParameterError(f'run_mode is "sim" but key is on {device}: sim runs on CPU tensors.', "argument")
    return mode


def launch(plan: KernelPlan) -> None:
    """Run a plan in its run mode. The npu branch is written for real use and was never run by this project."""
    if plan.run_mode == "sim":
        import torch

        from . import sim  # a host with an NPU never loads it

        with torch.device("cpu"):  # whatever the program's default is
            sim.run(plan)
    else:
        _on_npu(plan.kernel)(*plan.tensors())


@cache
def _on_npu(kernel: Kernel) -> Callable[..., None]:
    return kernel.build("npu")
