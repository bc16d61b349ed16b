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
    from .gather import gather_pa_kv_cache
    from .indexing import RowIndex, row_index
    from .slots import slots_from_block_table

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
    "gather_pa_kv_cache",
    "plan",
    "row_index",
    "scatter_pa_kv_cache",
    "slots_from_block_table",
]


_HOMES = {"plan": "api", "scatter_pa_kv_cache": "api", "RowIndex": "indexing", "row_index": "indexing"}
_HOMES |= {"gather_pa_kv_cache": "gather", "slots_from_block_table": "slots"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES.get(name, 'errors')}", __name__), name)
