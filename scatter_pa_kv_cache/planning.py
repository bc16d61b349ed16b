"""A checked call -> its plan."""

from __future__ import annotations

from functools import lru_cache

from .arguments import Arguments
from .errors import InvalidParameterError, TilingError
from .indexing import RowIndex
from .plans import Plan
from .rules import Choice, choose
from .task_plan import make_task_plan
from .token_plan import make_token_plan

COMPRESSED = (3, 4, 5)

choose_cached = lru_cache(maxsize=1024)(choose)


def make_plan(arguments: Arguments, choice: Choice | None, run_mode: str, shared: RowIndex | None = None) -> Plan:
    """Plan a call that the rules have accepted; a choice of None is a call with nothing to write.

    Raises TilingError (561002) where rows cannot express a cache's strides or one side alone is empty,
    InvalidParameterError where the ``shared`` row index is of other caches.
    """
    if choice is None:
        return Plan(arguments, run_mode)
    for name in ("key", "value"):
        tensor = getattr(arguments, name)
        if tensor is not None and tensor.dim() and not tensor.numel():
            raise TilingError(f"{name} has shape {list(tensor.shape)}, no elements; the other side has some", "layout")
    if choice.scenario.number not in COMPRESSED:
        return make_token_plan(arguments, choice, run_mode, shared)
    if shared is not None:
        raise InvalidParameterError(
            f"slot_mapping is a RowIndex; scenario {choice.scenario.number} names a slot for each task, so it must be "
            "a tensor"
        )
    return make_task_plan(arguments, choice, run_mode)
