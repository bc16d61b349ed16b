"""Valid calls of sim_cases made invalid in one place, and calls without memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from sim_cases import COPIED, Case, noise, task_calls, token_calls

SIDES = ("key", "key_cache", "value", "value_cache")
CACHES = ("key_cache", "value_cache")
TASK_TENSORS = ("compress_lens", "compress_seq_offset", "seq_lens")
TOKEN_KINDS = ("norm", "nct", "pa_nz", "nhsd", "key_only")
TASK_KINDS = tuple((mode, rank) for mode in ("Rope", "Omni", "Alibi") for rank in (3, 4))


class Invalid(NamedTuple):
    """A call that must be refused: what was done to it, and whether it takes the index data to tell."""

    what: str
    case: Case
    data: bool = False


def any_tokens() -> st.SearchStrategy[Case]:
    return st.sampled_from(TOKEN_KINDS).flatmap(token_calls)


def any_tasks() -> st.SearchStrategy[Case]:
    return st.sampled_from(TASK_KINDS).flatmap(lambda kind: task_calls(*kind))


def on_meta(case: Case) -> Case:
    """The same call without memory: shapes, strides, and as much room behind the first element."""
    return {name: _meta(given) if isinstance(given, torch.Tensor) else given for name, given in case.items()}


def _meta(given: torch.Tensor) -> torch.Tensor:
    room = given.untyped_storage().nbytes() // given.element_size()
    whole = torch.empty(room, dtype=given.dtype, device="meta")
    return whole.as_strided(given.shape, given.stride(), given.storage_offset())


def names_in(case: Case, names: tuple[str, ...]) -> list[str]:
    """Those of the names that the call gives a tensor for."""
    return [name for name in names if name in case]


def _fresh(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    if dtype in (torch.int32, torch.int64):  # slots and lengths that are small
        return torch.zeros(shape, dtype=dtype)
    return noise(tuple(shape), dtype, torch.Generator().manual_seed(0))


def wrong_dtype(draw: st.DrawFn, case: Case) -> Invalid:
    name = draw(st.sampled_from(names_in(case, (*SIDES, "slot_mapping", *TASK_TENSORS))))
    given: torch.Tensor = case[name]
    if name in SIDES:
        others = [dtype for dtype in (*COPIED, torch.float64, torch.bool, torch.complex64) if dtype != given.dtype]
        dtype = draw(st.sampled_from(others))
        changed = torch.ones(given.shape).to(dtype)
    else:
        dtype = draw(st.sampled_from([torch.int16, torch.uint8, torch.uint32, torch.float32, torch.bool]))
        changed = given.to(dtype)
    return Invalid(f"{name} is {dtype}", case | {name: changed})


def wrong_rank(draw: st.DrawFn, case: Case) -> Invalid:
    name = draw(st.sampled_from(names_in(case, (*SIDES, "slot_mapping"))))
    if draw(st.booleans()) or name == "slot_mapping":
        return Invalid(f"{name} has an axis more", case | {name: case[name][None]})
    return Invalid(f"{name} has one axis", case | {name: _fresh([case[name].numel()], case[name].dtype)})


def wrong_size(draw: st.DrawFn, case: Case) -> Invalid:
    name = draw(st.sampled_from(names_in(case, (*SIDES, "slot_mapping", *TASK_TENSORS))))
    shape = list(case[name].shape)
    first = 2 if name == "key_cache" and "value" not in case else 0  # a lone cache has any number of blocks and slots
    axis = draw(st.integers(first, len(shape) - 1))
    shape[axis] += 1 if shape[axis] == 1 else draw(st.sampled_from([-1, 1]))
    return Invalid(f"{name} has shape {shape}", case | {name: _fresh(shape, case[name].dtype)})


def wrong_word(draw: st.DrawFn, case: Case) -> Invalid:
    names = ["cache_mode", "soc"] if case.get("cache_mode") == "PA_NZ" else ["cache_mode", "scatter_mode", "soc"]
    name = draw(st.sampled_from(names))
    word = draw(st.sampled_from(["norm", "NORM", "pa_nz", "NZ", "rope", "nhsd", "none", "NHD", " ", "910B", "0", 7]))
    return Invalid(f"{name} is {word!r}", case | {name: word})


def no_tensor(draw: st.DrawFn, case: Case) -> Invalid:
    name = draw(st.sampled_from(names_in(case, (*SIDES, "slot_mapping"))))
    return Invalid(f"{name} is none", case | {name: draw(st.sampled_from([None, 3, "key"]))})


def swapped_caches(draw: st.DrawFn, case: Case) -> Invalid | None:
    if "value" not in case:
        return None
    key_cache, value_cache = case["key_cache"], case["value_cache"]
    if (key_cache.shape, key_cache.dtype) == (value_cache.shape, value_cache.dtype):
        return None
    return Invalid("swapped caches", case | {"key_cache": value_cache, "value_cache": key_cache})


def sparse_rows(draw: st.DrawFn, case: Case) -> Invalid | None:
    names = [name for name in names_in(case, CACHES) if case[name].shape[-1] > 1]
    if not names:
        return None
    name = draw(st.sampled_from(names))
    *outer, last = case[name].shape
    return Invalid(f"{name} with gaps in a row", case | {name: _fresh([*outer, 2 * last], case[name].dtype)[..., ::2]})


def one_block_many_times(draw: st.DrawFn, case: Case) -> Invalid | None:
    name = draw(st.sampled_from(names_in(case, CACHES)))
    cache = case[name]
    if len(cache) == 1:
        return None
    return Invalid(f"{name} is one block", case | {name: cache[:1].expand(cache.shape)})


def wrong_product(draw: st.DrawFn, case: Case) -> Invalid | None:
    if case["key"].dim() == 4:
        return Invalid("a 4-D key on A2", case | {"soc": "A2"})
    if "value" not in case or case.get("scatter_mode") == "NHSD":
        return Invalid("not on 950", case | {"soc": "950"})
    return None


def wrong_buffer(draw: st.DrawFn, case: Case) -> Invalid | None:
    if case.get("scatter_mode") != "Nct":
        return None
    far = case["key"].untyped_storage().nbytes()
    changes: list[Case] = [
        {"strides": (0, 1)},
        {"strides": (-1, 1)},
        {"offsets": (-1, 0)},
        {"offsets": (far, 0)},
        {"strides": (1, 1, 1)},
        {"offsets": (0,)},
        {"strides": None},
        {"offsets": (0.5, 0)},
    ]
    change = draw(st.sampled_from(changes))
    return Invalid(str(change), case | change)


def _changed(case: Case, name: str, at: int, number: int) -> Case:
    tensor = case[name].clone()
    tensor.view(-1)[at] = number
    return case | {name: tensor}


def slot_beyond(draw: st.DrawFn, case: Case) -> Invalid:
    cache, slots = case["key_cache"], case["slot_mapping"]
    nz, nhsd = case.get("cache_mode") == "PA_NZ", case.get("scatter_mode") == "NHSD"
    block_size = cache.shape[-2] if nz or nhsd else cache.shape[1]
    capacity = len(cache) * block_size + (0 if "seq_lens" not in case else 1)  # a task of no rows may stand at the end
    slot = capacity + draw(st.sampled_from([0, 1, 2**31 - 1 - capacity]))
    at = draw(st.integers(0, slots.numel() - 1))
    return Invalid(f"slot {slot}", _changed(case, "slot_mapping", at, slot), data=True)


def same_slot(draw: st.DrawFn, case: Case) -> Invalid | None:
    slots = case["slot_mapping"].flatten()
    writing = slots >= 0
    if "seq_lens" in case:
        if case["scatter_mode"] != "Alibi":
            return None
        writing &= case["compress_lens"].flatten() > 0
    places = writing.nonzero().flatten().tolist()
    if len(places) < 2:
        return None
    first, second = draw(st.permutations(places))[:2]
    return Invalid("a slot twice", _changed(case, "slot_mapping", second, int(slots[first])), data=True)


def wrong_task(draw: st.DrawFn, case: Case) -> Invalid | None:
    if "seq_lens" not in case:
        return None
    slots, lengths, heads = case["slot_mapping"].flatten(), case["seq_lens"], case["key"].shape[-2]
    sequence = draw(st.integers(0, len(lengths) - 1))
    too_long = case["key"].shape[1] + 1 if case["key"].dim() == 4 else int(lengths[sequence]) + 1
    changes = [_changed(case, "seq_lens", sequence, number) for number in (-1, too_long)]
    for task in (slots >= 0).nonzero().flatten().tolist()[:1]:
        if case["scatter_mode"] != "Alibi":
            changes.append(_changed(case, "compress_seq_offset", task, -2))
            changes.append(_changed(case, "compress_seq_offset", task, int(lengths[task // heads]) + 1))
        else:
            changes.append(_changed(case, "compress_lens", task, int(lengths[task // heads]) + 1))
            changes.append(_changed(case, "compress_lens", task, -1))
    return Invalid("lengths or offsets", draw(st.sampled_from(changes)), data=True)


MUTATIONS: tuple[Callable[[st.DrawFn, Case], Invalid | None], ...] = (
    wrong_dtype,
    wrong_rank,
    wrong_size,
    wrong_word,
    no_tensor,
    swapped_caches,
    sparse_rows,
    one_block_many_times,
    wrong_product,
    wrong_buffer,
    slot_beyond,
    same_slot,
    wrong_task,
)


@st.composite
def invalid_calls(draw: st.DrawFn) -> Invalid:
    """A valid call of any scenario with one thing wrong."""
    case = draw(st.one_of(any_tokens(), any_tasks()))
    possible = [changed for changed in (mutate(draw, case) for mutate in MUTATIONS) if changed is not None]
    return draw(st.sampled_from(possible))
