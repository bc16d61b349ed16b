"""The rule table, and the choice of a scenario by it (sections 2 and 6 of the operator's specification).

The table is in the specification's order and the first broken rule raises: `rules_call` has A, C, D and E,
`rules_shapes` F, J, N and H, `rules_compress` K and G. The rules V, on index data, are in `data_rules`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .arguments import CallSpec
from .rule_types import Call, Rule, enforce
from .rules_call import CALL_RULES, NULL_RULES
from .rules_compress import COMPRESS_RULES
from .rules_shapes import SHAPE_RULES
from .scenarios import Scenario

RULES: tuple[Rule[CallSpec] | Rule[Call], ...] = (*NULL_RULES, *CALL_RULES, *SHAPE_RULES, *COMPRESS_RULES)


@dataclass(frozen=True, slots=True)
class Choice:
    """The scenario that an accepted call has, and its resolved scatter mode (never "None" for a 4-D key)."""

    scenario: Scenario
    scatter_mode: str

    @property
    def module(self) -> str:
        """The name that the kernel and its golden share."""
        return self.scenario.modules[self.scatter_mode]


def choose(spec: CallSpec) -> Choice | None:
    """The scenario of a call, or None when it is empty and there is nothing to do (rule B).

    Raises the error of the first broken rule: NullPointerError (A), InvalidParameterError (C, D) or TilingError (the
    others).
    """
    enforce(NULL_RULES, spec)
    call = Call.of(spec)
    if _is_empty(call):
        return None
    enforce(_call_rules(spec.soc), call)
    scenario = call.scenario
    assert scenario is not None, "the rules C1 and E leave a scenario"
    enforce(_shape_rules(scenario.number, call.scatter_mode, spec.soc), call)
    return Choice(scenario, call.scatter_mode)


def _is_empty(call: Call) -> bool:
    """Both sides empty; a rank-0 value counts as an empty side."""
    return (0 in call.key.shape or 0 in call.key_cache.shape) and (
        call.value.rank == 0 or 0 in call.value.shape or 0 in call.value_cache.shape
    )


@cache
def _call_rules(soc: str | None) -> tuple[Rule[Call], ...]:
    return tuple(rule for rule in CALL_RULES if not rule.products or soc in rule.products)


@cache
def _shape_rules(scenario: int, scatter_mode: str, soc: str | None) -> tuple[Rule[Call], ...]:
    return tuple(rule for rule in (*SHAPE_RULES, *COMPRESS_RULES) if rule.binds(scenario, scatter_mode, soc))
