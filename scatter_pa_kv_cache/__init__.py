"""Paged KV-cache writes for Ascend NPUs, as PyPTO JIT kernels. Importing this needs neither torch nor pypto."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import plan, scatter_pa_kv_cache
    from .errors import (
        DataError,
        InvalidParameterError,
        NullPointerError,
        ScatterPaKvCacheError,
        ScatterPaKvCacheWarning,
        SimulationError,
        TilingError,
    )

__version__ = "0.1.0"

__all__ = [
    "DataError",
    "InvalidParameterError",
    "NullPointerError",
    "ScatterPaKvCacheError",
    "ScatterPaKvCacheWarning",
    "SimulationError",
    "TilingError",
    "plan",
    "scatter_pa_kv_cache",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "api" if name in ("plan", "scatter_pa_kv_cache") else "errors"
    return getattr(importlib.import_module(f".{home}", __name__), name)
