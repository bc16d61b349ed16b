"""What a plan should write, by golden."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence

import torch

from .plans import KernelPlan


def reference(plan: KernelPlan, numbers: torch.Tensor, slots: torch.Tensor, caches: Sequence[torch.Tensor]) -> None:
    """Golden's write of some items at ``slots``, from the call's own arguments, into carrier ``caches``, in place."""
    arguments = plan.arguments
    some = torch.full(arguments.slot_mapping.shape, -1, dtype=slots.dtype)
    some.view(-1)[numbers] = slots
    values = {name: getattr(arguments, name) for name in arguments.__dataclass_fields__}
    values |= {"slot_mapping": some, "scatter_mode": plan.choice.scatter_mode, "dtype": arguments.key_dtype}
    strides, offsets = arguments.spec.strides or (None,), arguments.spec.offsets or (None,)
    values |= {"strides": strides, "offsets": offsets, "stride": strides[0], "offset": offsets[0]}
    for name, cache in zip(("key_cache", "value_cache"), caches, strict=False):
        values[name] = cache.view(values[name].dtype)
    golden = importlib.import_module(f"{__package__}.golden.{plan.choice.module}").reference
    golden(**{name: values[name] for name in inspect.signature(golden).parameters})
