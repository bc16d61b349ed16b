"""Rules A, C, D and E: what can be said of a call before its shapes, from null pointers to modes and products.

Section 6 of the operator's specification. A6 (workspace and executor pointers of the C interface) has no counterpart
here. Rule B, the empty call, is no error and lives in `rules.choose`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from .arguments import CallSpec, TensorSpec
from .dtypes import A2_A3_DTYPES, ALL_DTYPES, FLOAT4, INDEX_DTYPES
from .errors import InvalidParameterError, NullPointerError, TilingError
from .rule_types import Call, Rule, shape
from .scenarios import A2_A3, PRODUCTS, SCENARIOS

CACHE_MODES = tuple(dict.fromkeys(row.cache_mode for row in SCENARIOS))
SCATTER_MODES = tuple(dict.fromkeys(mode for row in SCENARIOS for mode in row.scatter_modes))


def _one_of(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


def _quoted(modes: Iterable[str]) -> str:
    return _one_of(f'"{mode}"' for mode in modes)


def _null(spec: CallSpec, name: str) -> str | None:
    return f"{name} is None; it must be a tensor" if getattr(spec, name) is None else None


def _null_side(spec: CallSpec, name: str, partner: str) -> str | None:
    if getattr(spec, name) is not None:
        return None
    return f"{name} is None but {partner} is given; {name} must be a tensor too (leave out both for key-only)"


def _key_rank(call: Call) -> str | None:
    if call.key.rank in (3, 4):
        return None
    return f"key has shape {shape(call.key)}; it must have rank 3, [T, H, Dk], or rank 4, [B, L, H, Dk]"


def _value_rank(call: Call) -> str | None:
    if call.value.rank in (0, 3, 4):
        return None
    return f"value has shape {shape(call.value)}; it must have rank 3 or 4 as key has, or rank 0 for key-only"


def _in_family(call: Call, name: str) -> str | None:
    tensor: TensorSpec = getattr(call, name)
    if name == "value" and tensor.rank == 0:
        return None
    products = (call.spec.soc,) if call.spec.soc else call.scenario.products if call.scenario else PRODUCTS
    family = ALL_DTYPES if "950" in products else A2_A3_DTYPES
    if tensor.dtype in family:
        return None
    what = f"scenario {call.scenario.number} ({call.scenario.title})" if call.scenario else "this call"
    return f"{name} is {tensor.dtype}; for {what} on {_one_of(map(str, products))} it must be {_one_of(family)}"


def _key_cache_dtype(call: Call) -> str | None:
    if call.key_cache.dtype == call.key.dtype:
        return None
    return f"key_cache is {call.key_cache.dtype}; it must have key's dtype, {call.key.dtype}"


def _slot_dtype(call: Call) -> str | None:
    if call.slot_mapping.dtype in INDEX_DTYPES:
        return None
    return f"slot_mapping is {call.slot_mapping.dtype}; it must be {_one_of(INDEX_DTYPES)}"


def _value_cache_dtype(call: Call) -> str | None:
    if call.value.rank == 0 or call.value_cache.dtype == call.value.dtype:
        return None
    return f"value_cache is {call.value_cache.dtype}; it must have value's dtype, {call.value.dtype}"


def _value_dtype(call: Call) -> str | None:
    if call.spec.cache_mode == "PA_NZ" or call.value.rank == 0 or call.value.dtype == call.key.dtype:
        return None
    return f'value is {call.value.dtype}; unless cache_mode is "PA_NZ" it must have key\'s dtype, {call.key.dtype}'


def _index_dtype(call: Call, name: str) -> str | None:
    tensor: TensorSpec | None = getattr(call.spec, name)
    if tensor is None or tensor.dtype == call.slot_mapping.dtype:
        return None
    return f"{name} is {tensor.dtype}; it must have slot_mapping's dtype, {call.slot_mapping.dtype}"


def _cache_mode(call: Call) -> str | None:
    if call.spec.cache_mode in CACHE_MODES:
        return None
    return f'cache_mode is "{call.spec.cache_mode}"; it must be {_quoted(CACHE_MODES)} (or None)'


def _scatter_mode(call: Call) -> str | None:
    if call.spec.cache_mode == "PA_NZ" or call.spec.scatter_mode in SCATTER_MODES:
        return None
    rank, soc = call.key.rank, call.spec.soc
    modes = dict.fromkeys(
        mode
        for row in SCENARIOS
        if row.cache_mode == "Norm" and row.key_rank == rank and (soc is None or soc in row.products)
        for mode in row.scatter_modes
    )
    where = f" on {soc}" if soc else ""
    return (
        f'scatter_mode is "{call.spec.scatter_mode}"; it must be {_quoted(SCATTER_MODES)}, '
        f"and with a {rank}-D key{where} {_quoted(modes) if modes else 'no mode is offered'}"
    )


def _no_nhsd(call: Call) -> str | None:
    if call.scatter_mode != "NHSD":
        return None
    return 'scatter_mode is "NHSD" and soc is "950"; scenario 7 (NHSD layout) is offered on A2 and A3 only'


def _key_only_mode(call: Call) -> str | None:
    spec = call.spec
    if not call.key_only or (spec.cache_mode == "Norm" and spec.scatter_mode in ("None", "Nct")):
        return None
    return (
        f'value_cache has rank 0 (key-only) with cache_mode "{spec.cache_mode}" and scatter_mode '
        f'"{spec.scatter_mode}"; key-only must have cache_mode "Norm" and scatter_mode "None" or "Nct"'
    )


def _no_key_only(call: Call) -> str | None:
    if not call.key_only or call.spec.soc in A2_A3:
        return None
    if call.spec.soc == "950":
        return (
            'value_cache has rank 0 (key-only) and soc is "950"; scenario 6 (key only) is offered on A2 and A3 only, '
            "value and value_cache must be given"
        )
    if call.key.rank == 4:
        return (
            "value_cache has rank 0 (key-only) with a 4-D key; a 4-D key is the 950's, which has no key-only: "
            "value and value_cache must be given, or key must be 3-D"
        )
    return None


def _both_or_neither(call: Call) -> str | None:
    if (call.value.rank == 0) == (call.value_cache.rank == 0):
        return None
    return (
        f"value has rank {call.value.rank} and value_cache rank {call.value_cache.rank}; "
        "both must have rank 0 (key-only) or neither"
    )


def _same_rank(call: Call) -> str | None:
    if call.value.rank in (0, call.key.rank):
        return None
    return f"value has rank {call.value.rank}; it must have key's rank, {call.key.rank}"


def _key_3d(call: Call) -> str | None:
    if call.key.rank == 3:
        return None
    return (
        f'key has rank {call.key.rank} and soc is "{call.spec.soc}"; scenario 3 (4-D compressed) is offered on 950 '
        "only, key must have rank 3"
    )


def _mode_of_4d(call: Call) -> str | None:
    spec = call.spec
    if call.key.rank != 4 or (spec.cache_mode != "PA_NZ" and spec.scatter_mode not in ("Nct", "NHSD")):
        return None
    return (
        f'key has rank 4 with cache_mode "{spec.cache_mode}" and scatter_mode "{spec.scatter_mode}"; a 4-D key must '
        'have cache_mode "Norm" and scatter_mode "Rope", "Omni", "Alibi" or "None"'
    )


def _float4(call: Call) -> str | None:
    wide = call.key.rank == 3 and call.scatter_mode == "None"
    for side in call.sides:
        if side.tensor.dtype in FLOAT4 and not wide:
            return (
                f'{side.name} is {side.tensor.dtype}; 4-bit types must have a 3-D key and cache_mode "PA_NZ" '
                'or scatter_mode "None"'
            )
    return None


def _null_rule(rule: str, name: str, partner: str | None = None) -> Rule[CallSpec]:
    broken: Callable[[CallSpec], str | None] = partial(_null, name=name)
    if partner is not None:
        broken = partial(_null_side, name=name, partner=partner)
    return Rule(rule, NullPointerError, f"{name} is not null", broken)


NULL_RULES: tuple[Rule[CallSpec], ...] = (
    _null_rule("A1", "key"),
    _null_rule("A2", "key_cache"),
    _null_rule("A3", "slot_mapping"),
    _null_rule("A4", "value", "value_cache"),
    _null_rule("A5", "value_cache", "value"),
)

_P = InvalidParameterError
_T = TilingError
CALL_RULES: tuple[Rule[Call], ...] = (
    Rule("C1", _P, "key has rank 3 or 4", _key_rank),
    Rule("C2", _P, "value has rank 0, 3 or 4", _value_rank),
    Rule("D1", _P, "key's dtype is one of the product family's", partial(_in_family, name="key")),
    Rule("D2", _P, "key_cache has key's dtype", _key_cache_dtype),
    Rule("D3", _P, "slot_mapping is int32 or int64", _slot_dtype),
    Rule("D4", _P, "value's dtype is one of the product family's", partial(_in_family, name="value")),
    Rule("D5", _P, "value_cache has value's dtype", _value_cache_dtype),
    Rule("D6", _P, "without PA_NZ, value has key's dtype", _value_dtype),
    Rule("D7", _P, "compress_lens has slot_mapping's dtype", partial(_index_dtype, name="compress_lens")),
    Rule("D8", _P, "compress_seq_offset has slot_mapping's dtype", partial(_index_dtype, name="compress_seq_offset")),
    Rule("D9", _P, "seq_lens has slot_mapping's dtype", partial(_index_dtype, name="seq_lens")),
    Rule("E1", _T, "cache_mode is Norm or PA_NZ", _cache_mode),
    Rule("E2", _T, "scatter_mode is one of the six", _scatter_mode),
    Rule("E3", _T, "950: not NHSD", _no_nhsd, products=("950",)),
    Rule("E4", _T, "value_cache of rank 0 only with Norm and None or Nct", _key_only_mode),
    Rule("E5", _T, "950, and so a 4-D key: no key-only", _no_key_only),
    Rule("E6", _T, "value and value_cache are both of rank 0 or neither", _both_or_neither),
    Rule("E7", _T, "value has key's rank", _same_rank),
    Rule("E8", _T, "A2/A3: key has rank 3", _key_3d, products=A2_A3),
    Rule("E9", _T, "a 4-D key is not with Nct, NHSD or PA_NZ", _mode_of_4d),
    Rule("E10", _T, "4-bit types only 3-D with PA_NZ or None", _float4),
)
