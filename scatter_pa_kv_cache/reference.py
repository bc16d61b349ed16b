"""What a plan or a call should write, by golden."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .arguments import normalise
from .plans import KernelPlan
from .rules import choose


def reference(plan: KernelPlan, numbers: torch.Tensor, slots: torch.Tensor, caches: Sequence[torch.Tensor]) -> None:
    """Golden's write of some items at ``slots``, from the call's own arguments, into carrier ``caches``, in place."""
    arguments = plan.arguments
    some = torch.full(arguments.slot_mapping.shape, -1, dtype=slots.dtype)
    some.view(-1)[numbers] = slots
    values = arguments._asdict()
    values |= {"slot_mapping": some, "scatter_mode": plan.choice.scatter_mode, "dtype": arguments.key_dtype}
    strides, offsets = arguments.spec.strides or (None,), arguments.spec.offsets or (None,)
    values |= {"strides": strides, "offsets": offsets, "stride": strides[0], "offset": offsets[0]}
    for name, cache in zip(("key_cache", "value_cache"), caches, strict=False):
        values[name] = cache.view(values[name].dtype)
    _call(plan.choice.module, values)


def run_golden(call: Mapping[str, Any]) -> None:
    """Golden's write of a whole call, given by the keyword arguments of ``scatter_pa_kv_cache``, in place."""
    choice = choose(normalise(**call).spec)
    if choice is None:
        return
    values = {"dtype": call.get("key_dtype"), **call, "scatter_mode": choice.scatter_mode}
    if choice.scatter_mode == "Nct":
        values |= {"stride": call["strides"][0], "offset": call["offsets"][0]}
    _call(choice.module, values)


def _call(module: str, values: Mapping[str, Any]) -> None:
    """Hand a golden those of the values that it names."""
    golden = importlib.import_module(f"{__package__}.golden.{module}").reference
    golden(**{name: values[name] for name in inspect.signature(golden).parameters if name in values})
