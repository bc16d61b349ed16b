"""A call -> its plan. What depends on shapes alone is decided once and remembered by the call's signature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .arguments import Arguments, CallSpec, normalise
from .data_rules import check_data as check_index_data
from .errors import InvalidParameterError, TilingError
from .indexing import RowIndex
from .plans import Plan, Template
from .rules import Choice, choose
from .runtime import choose_run_mode
from .scenarios import COMPRESSED
from .task_plan import task_template
from .token_plan import token_template

_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Decision:
    """What the rules and the planner made of a signature. template: None where there is nothing to write."""

    spec: CallSpec
    run_mode: str
    template: Template | None


_decisions: dict[tuple[Any, ...] | None, Decision] = {}


def make_plan(
    tensors: tuple[Any, ...],
    options: tuple[Any, ...],
    run_mode: str | None,
    check_data: bool | None,
) -> Plan:
    """Check a call and choose its kernel.

    tensors: the eight of ``scatter_pa_kv_cache``, in the order of ``Arguments``, a RowIndex perhaps for the slots.
    options: cache_mode, scatter_mode, strides, offsets, key_dtype, value_dtype, soc. Raises ScatterPaKvCacheError as
    ``scatter_pa_kv_cache`` does.
    """
    shared = tensors[2] if isinstance(tensors[2], RowIndex) else None
    if shared is not None:
        tensors = (*tensors[:2], shared.slot_mapping, *tensors[3:])
    try:
        signature = _signature(tensors, options, run_mode)
        decision = _decisions.get(signature)
    except (AttributeError, TypeError, RuntimeError):  # not well formed: the rules say why
        signature = decision = None
    if decision is None:
        decision = _decide(tensors, options, run_mode)
        if signature is not None:
            if len(_decisions) >= _REMEMBERED:
                _decisions.clear()
            _decisions[signature] = decision
    arguments = Arguments(*tensors, decision.spec)  # type: ignore[arg-type, call-arg]  # an accepted call
    if decision.template is None:
        return Plan(arguments, decision.run_mode)
    choice = decision.template.choice
    if shared is not None and choice.scenario.number in COMPRESSED:
        raise InvalidParameterError(
            f"slot_mapping is a RowIndex; scenario {choice.scenario.number} names a slot for each task, so it must be "
            "a tensor"
        )
    if decision.run_mode == "sim" if check_data is None else check_data:
        check_index_data(arguments, choice)
    return decision.template.bind(arguments, decision.run_mode, shared)


def _decide(tensors: tuple[Tensor | None, ...], options: tuple[Any, ...], run_mode: str | None) -> Decision:
    cache_mode, scatter_mode, strides, offsets, key_dtype, value_dtype, soc = options
    key, key_cache, slot_mapping, value, value_cache, compress_lens, compress_seq_offset, seq_lens = tensors
    arguments = normalise(
        key,
        key_cache,
        slot_mapping,
        value,
        value_cache,
        compress_lens=compress_lens,
        compress_seq_offset=compress_seq_offset,
        seq_lens=seq_lens,
        cache_mode=cache_mode,
        scatter_mode=scatter_mode,
        strides=strides,
        offsets=offsets,
        key_dtype=key_dtype,
        value_dtype=value_dtype,
        soc=soc,
    )
    choice = choose(arguments.spec)
    mode = choose_run_mode(run_mode, arguments.key)
    return Decision(arguments.spec, mode, None if choice is None else template(arguments, choice))


def template(arguments: Arguments, choice: Choice) -> Template:
    """The template of a call that the rules have accepted.

    Raises TilingError (561002) where rows cannot express a cache's strides or one side alone is empty.
    """
    for name in ("key", "value"):
        tensor = getattr(arguments, name)
        if tensor is not None and tensor.dim() and not tensor.numel():
            raise TilingError(f"{name} has shape {list(tensor.shape)}, no elements; the other side has some", "layout")
    return (task_template if choice.scenario.number in COMPRESSED else token_template)(arguments, choice)


def _signature(tensors: tuple[Any, ...], options: tuple[Any, ...], run_mode: str | None) -> tuple[Any, ...] | None:
    """All of a call that decides on its plan, but not its data. None for numbers that only equal what they should be.

    Raises AttributeError, TypeError or RuntimeError for a call that is not even well formed.
    """
    cache_mode, scatter_mode, strides, offsets, *others = options
    if set(map(type, (*strides, *offsets))) != {int}:
        return None
    signature = [cache_mode, scatter_mode, tuple(strides), tuple(offsets), run_mode, *others]
    for tensor in tensors:
        if tensor is None:
            signature.append(None)
            continue
        signature += (
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
            tensor.device,
            tensor.storage_offset(),
            tensor.is_neg(),
        )
        if scatter_mode == "Nct" or not tensor.is_contiguous():
            signature.append(tensor.untyped_storage().nbytes())
    return tuple(signature)
