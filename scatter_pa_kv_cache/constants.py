"""Tensors that depend on no data: made once for a device, because sending to it waits."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

_PLAIN = (Tensor, torch.nn.Parameter)


def kept(maxsize: int) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Make ``make(*key, device=...)`` a function of a tensor and the same key that remembers its last results.

    The tensor names the device. Beside a tensor without memory, as tracers and FakeTensorMode have them, what is made
    has none either: it is neither remembered nor taken from memory.
    """

    def decorate(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        remembered = lru_cache(maxsize)(make)

        def get(beside: Tensor, *key: object) -> Tensor:
            plain = type(beside) in _PLAIN and not torch.compiler.is_compiling()
            return (remembered if plain else make)(*key, device=beside.device)

        return get

    return decorate


@kept(maxsize=256)
def constant(numbers: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """``numbers`` as a tensor; called as ``constant(beside, numbers, dtype)``."""
    return torch.tensor(numbers, dtype=dtype, device=device)
