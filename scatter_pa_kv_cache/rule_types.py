"""What a rule is, and what it looks at: a call and its scenario. The rules are in rules_*.py and data_rules.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from .arguments import CallSpec, TensorSpec
from .errors import ScatterPaKvCacheError
from .scenarios import SCENARIOS, Scenario

KEY_ONLY = 6
_ROWS = {
    (row.cache_mode, row.key_rank, mode, row.number == KEY_ONLY): row for row in SCENARIOS for mode in row.scatter_modes
}

Context = TypeVar("Context")


@dataclass(frozen=True, slots=True)
class Rule(Generic[Context]):
    """One row of section 6 of the operator's specification.

    ``condition`` says in words what must hold; ``broken`` returns a sentence about what does not, or None. An empty
    ``scenarios``, ``modes`` or ``products`` binds all; otherwise the rule binds only those (``products``: only when
    the call names one of them).
    """

    id: str
    error: type[ScatterPaKvCacheError]
    condition: str
    broken: Callable[[Context], str | None]
    scenarios: tuple[int, ...] = ()
    modes: tuple[str, ...] = ()
    products: tuple[str, ...] = ()

    def binds(self, scenario: int, scatter_mode: str, soc: str | None) -> bool:
        return (
            (not self.scenarios or scenario in self.scenarios)
            and (not self.modes or scatter_mode in self.modes)
            and (not self.products or soc in self.products)
        )


def enforce(rules: Iterable[Rule[Context]], context: Context) -> None:
    """Raise the error of the first broken rule."""
    for rule in rules:
        sentence = rule.broken(context)
        if sentence is not None:
            raise rule.error(sentence, rule.id)


class Side(NamedTuple):
    """The key or the value of a call with its cache; ``place`` is its entry in strides and offsets."""

    name: str
    tensor: TensorSpec
    cache: TensorSpec
    place: int

    @property
    def cache_name(self) -> str:
        return f"{self.name}_cache"

    @property
    def head_size(self) -> int:
        return self.tensor.shape[-1]


@dataclass(frozen=True, slots=True)
class Call:
    """A call that has its required tensors, with its scenario (None: the modes and ranks name none) and scatter mode.

    ``scatter_mode`` is the resolved one: "None" for PA_NZ, which ignores it, and for a 4-D key without a mode the one
    that the optional tensors name. The sizes are meaningful once the rank rules (C, F4, N1) have passed.
    """

    spec: CallSpec
    key: TensorSpec
    key_cache: TensorSpec
    slot_mapping: TensorSpec
    value: TensorSpec
    value_cache: TensorSpec
    scenario: Scenario | None
    scatter_mode: str

    @classmethod
    def of(cls, spec: CallSpec) -> Call:
        """Read the scenario off a spec that has passed the rules A (section 2 of the operator's specification)."""
        key, key_cache, slot_mapping, value, value_cache = spec[:5]
        assert key is not None
        assert key_cache is not None
        assert slot_mapping is not None
        assert value is not None
        assert value_cache is not None
        mode = spec.scatter_mode
        if spec.cache_mode == "PA_NZ":
            mode = "None"
        elif mode == "None" and key.rank == 4:
            mode = "Alibi" if spec.compress_seq_offset is None else "Rope"
        scenario = _ROWS.get((spec.cache_mode, key.rank, mode, value_cache.rank == 0))
        return cls(spec, key, key_cache, slot_mapping, value, value_cache, scenario, mode)

    @property
    def key_only(self) -> bool:
        return self.value_cache.rank == 0

    @property
    def sides(self) -> tuple[Side, ...]:
        key = Side("key", self.key, self.key_cache, 0)
        return (key,) if self.key_only else (key, Side("value", self.value, self.value_cache, 1))

    @property
    def tokens(self) -> int:
        return self.key.shape[0]

    @property
    def heads(self) -> int:
        return self.key.shape[-2]

    @property
    def batches(self) -> int:
        """Sequences of a compressed call: dim 0 of a 4-D key, else the length of seq_lens."""
        if self.key.rank == 4:
            return self.key.shape[0]
        return self.spec.seq_lens.shape[0] if self.spec.seq_lens is not None else 0

    @property
    def capacity(self) -> int:
        """Slots of the key cache, NB * BS."""
        return self.key_cache.shape[0] * self.block_size(self.key_cache)

    def block_size(self, cache: TensorSpec) -> int:
        """Slots of a block: the dim before the last in PA_NZ and NHSD caches, dim 1 in the others."""
        hidden = self.spec.cache_mode == "PA_NZ" or self.scatter_mode == "NHSD"
        return cache.shape[-2] if hidden else cache.shape[1]


def shape(tensor: TensorSpec) -> str:
    """A tensor's shape as the messages print it."""
    return str(list(tensor.shape))
