"""Scenario 6: the key alone, plain or Nct (the operator's specification, section 4.7)."""

from __future__ import annotations

from torch import Tensor

from . import nct, norm


def reference(
    key: Tensor,
    key_cache: Tensor,
    slot_mapping: Tensor,
    *,
    scatter_mode: str = "None",
    stride: int | None = None,
    offset: int | None = None,
) -> None:
    """Update key_cache [NB, BS, H, D] in place from key [T, H, D] at slot_mapping [T], as ``norm`` or ``nct`` do.

    ``stride`` and ``offset`` (elements) belong to scatter mode "Nct" and are required there. Raises ValueError for
    another scatter mode or when they are missing.
    """
    if scatter_mode == "None":
        norm.scatter(key, key_cache, slot_mapping)
    elif scatter_mode == "Nct":
        if stride is None or offset is None:
            raise ValueError(f"stride is {stride} and offset is {offset}; scatter mode Nct needs both as integers")
        nct.scatter(key, key_cache, slot_mapping, stride, offset)
    else:
        raise ValueError(f'scatter_mode is {scatter_mode!r}; without a value it must be "None" or "Nct"')
