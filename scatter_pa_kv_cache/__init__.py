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
    from .indexing import RowIndex, row_index

__version__ = "0.1.0"

__all__ = [
    "DataError",
    "InvalidParameterError",
    "NullPointerError",
    "RowIndex",
    "ScatterPaKvCacheError",
    "ScatterPaKvCacheWarning",
    "SimulationError",
    "TilingError",
    "plan",
    "row_index",
    "scatter_pa_kv_cache",
]


_HOMES = {"plan": "api", "scatter_pa_kv_cache": "api", "RowIndex": "indexing", "row_index": "indexing"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES.get(name, 'errors')}", __name__), name)
