"""A checked call -> its plan."""

from __future__ import annotations

from functools import lru_cache

from .arguments import Arguments
from .plans import Plan
from .rules import Choice, choose
from .task_plan import make_task_plan
from .token_plan import make_token_plan

COMPRESSED = (3, 4, 5)

choose_cached = lru_cache(maxsize=1024)(choose)


def make_plan(arguments: Arguments, choice: Choice | None, run_mode: str) -> Plan:
    """Plan a call that the rules have accepted; a choice of None is a call with nothing to write.

    Raises TilingError (561002) where rows cannot express a cache's strides.
    """
    if choice is None:
        return Plan(arguments, run_mode)
    make = make_task_plan if choice.scenario.number in COMPRESSED else make_token_plan
    return make(arguments, choice, run_mode)
