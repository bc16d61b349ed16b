"""What a repeated call may remember, and what it must read anew."""

import contextlib

import _checkout  # noqa: F401
import pytest
import rule_cases
import torch

from scatter_pa_kv_cache import (
    DataError,
    InvalidParameterError,
    TilingError,
    plan,
    planning,
    row_index,
    scatter_pa_kv_cache,
)
from scatter_pa_kv_cache.arguments import normalise
from scatter_pa_kv_cache.plans import Plan
from scatter_pa_kv_cache.reference import run_golden
from scatter_pa_kv_cache.scenarios import TENSORS
from scatter_pa_kv_cache.task_plan import TaskPlan
from scatter_pa_kv_cache.token_plan import TokenPlan


def test_a_second_run_reads_the_tensors_as_they_are_then() -> None:
    """Sources that have to be packed too."""
    for transposed in (False, True):
        case = rule_cases.norm()
        if transposed:
            case["key"] = torch.randn(2, 3, 4).half().transpose(0, 1)
        planned = plan(**case)
        planned.run()
        case["key"].add_(1)
        case["slot_mapping"].copy_(torch.tensor([1, 6, -1]))
        want = case | {name: case[name].clone() for name in ("key_cache", "value_cache")}
        planned.run()
        run_golden(want)
        assert torch.equal(case["key_cache"], want["key_cache"])
        assert torch.equal(case["value_cache"], want["value_cache"])


def test_what_no_view_can_show_is_read_by_each_launch() -> None:
    """Views are handed over again as they are; a packed source and a computed index are made anew."""
    case = rule_cases.norm()
    dense = plan(**case)
    assert isinstance(dense, TokenPlan)
    assert dense.tensors() is dense.tensors()
    gaps = case["slot_mapping"].repeat_interleave(2)[::2]
    transposed = case["key"].transpose(0, 1).contiguous().transpose(0, 1)
    for name, given in (("slot_mapping", gaps), ("key", transposed)):
        planned = plan(**(case | {name: given}))
        assert isinstance(planned, TokenPlan)
        before = planned.tensors()
        given.sub_(2)
        number = {"key": 0, "slot_mapping": 2}[name]
        assert torch.equal(planned.tensors()[number], before[number] - 2)


def test_a_shared_row_index_is_kept_with_the_slots_it_was_made_of() -> None:
    case = rule_cases.norm()
    shared = row_index(case["slot_mapping"], case["key_cache"], case["value_cache"])
    planned = plan(**(case | {"slot_mapping": shared}))
    assert isinstance(planned, TokenPlan)
    assert planned.tensors() is planned.tensors()
    assert planned.tensors()[2] is shared.indexes[0]


def test_rows_of_slots_are_made_once_for_a_layout() -> None:
    """Of the compressed scenarios: they do not depend on data, and are as long as the cache."""
    case = rule_cases.alibi()
    one, other = (plan(**(case | {"key_cache": case["key_cache"].clone()})) for _ in range(2))
    assert isinstance(one, TaskPlan)
    assert isinstance(other, TaskPlan)
    assert one.tensors()[6] is other.tensors()[6]


def test_calls_of_one_signature_are_decided_once(monkeypatch: pytest.MonkeyPatch) -> None:
    planning._decisions.clear()
    plan(**rule_cases.norm())
    monkeypatch.setattr(planning, "normalise", None)  # what decides would call it
    second = plan(**rule_cases.norm())
    assert isinstance(second, TokenPlan)
    third = plan(**rule_cases.norm(), strides=[1, 1])
    assert isinstance(third, TokenPlan)


@pytest.mark.parametrize(
    "change",
    [
        {"slot_mapping": torch.tensor([0, 5])},
        {"cache_mode": "norm"},
        {"soc": "A1"},
        {"key_dtype": "hifloat8"},
        {"run_mode": "npu"},
        {"strides": (1.0, 1.0)},
        {"offsets": (0.0, 0.0)},
        {"cache_mode": ["Norm"]},
    ],
    ids=str,
)
def test_what_is_remembered_does_not_admit_what_is_refused(change: dict) -> None:
    case = rule_cases.norm()
    plan(**case)
    with pytest.raises((InvalidParameterError, TilingError)):
        plan(**(case | change))


def test_what_is_remembered_tells_all_tensors_apart() -> None:
    """Those after an absent one too: alibi has no compress_seq_offset."""
    case = rule_cases.alibi()
    plan(**case)
    with pytest.raises(TilingError, match="seq_lens has shape"):
        plan(**(case | {"seq_lens": case["seq_lens"][None]}))


def test_memory_that_ends_earlier_is_decided_anew() -> None:
    """Of the same shape, strides and begin: Nct may not read past it, and a fused matrix may lack its last columns."""
    memory = torch.zeros(64).half()
    case = rule_cases.nct() | {"key": memory[:24].view(3, 2, 4), "offsets": (1, 0)}
    plan(**case)
    with pytest.raises(TilingError, match="key's buffer has 24 elements"):
        plan(**(case | {"key": memory[:24].clone().view(3, 2, 4)}))
    for elements, packed in ((48, False), (40, True)):
        key = torch.zeros(elements).half().as_strided((3, 2, 4), (16, 4, 1))
        planned = plan(**(rule_cases.norm() | {"key": key}))
        assert isinstance(planned, TokenPlan)
        assert planned.sides[0].view.packed is packed


def test_no_more_is_remembered_than_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_decisions", {})
    monkeypatch.setattr(planning, "_REMEMBERED", 2)
    for soc, remembered in (("A2", 1), ("A3", 2), ("950", 1), (None, 2)):
        plan(**rule_cases.norm(), soc=soc)
        assert len(planning._decisions) == remembered


@pytest.mark.parametrize(
    "base",
    [*rule_cases.BASES, lambda: rule_cases.float4(rule_cases.norm(), "float4_e2m1")],
    ids=lambda base: base.__name__,
)
def test_a_plan_is_of_the_call_as_it_was_given(base, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is decided and when it is remembered."""
    monkeypatch.setattr(planning, "_decisions", {})
    for _ in range(2):
        case = base()
        planned = plan(**case)
        assert planned.arguments.spec == normalise(**case).spec
        assert all(getattr(planned.arguments, name) is case.get(name) for name in TENSORS)
        assert planned.run_mode == "sim"


def test_a_plan_with_nothing_to_write_is_of_its_call_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_decisions", {})
    for name in ("key", "key_cache"):
        empty = {side: torch.zeros(0, 2, 4).half() for side in ("key", "value")}
        if name == "key_cache":
            empty = {side: torch.zeros(0, 4, 2, 4).half() for side in ("key_cache", "value_cache")}
        case = rule_cases.norm() | empty
        planned = plan(**case)
        assert type(planned) is Plan
        assert planned.arguments.key_cache is case["key_cache"]
        assert planned.run_mode == "sim"
        planned.run()


@pytest.mark.parametrize(
    ("run_mode", "check_data", "checked"),
    [
        ("sim", None, True),
        ("sim", True, True),
        ("sim", False, False),
        ("npu", None, False),
        ("npu", True, True),
        ("npu", False, False),
    ],
)
def test_index_data_is_checked_in_sim_or_where_asked_for(
    run_mode: str, check_data: bool | None, checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "_decisions", {})
    monkeypatch.setattr(planning, "choose_run_mode", lambda *_: run_mode)
    twice = rule_cases.norm() | {"slot_mapping": torch.tensor([0, 5, 5])}
    with pytest.raises(DataError) if checked else contextlib.nullcontext():
        assert plan(**twice, check_data=check_data).run_mode == run_mode


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_nct_begins_where_it_says(offset: int) -> None:
    """Tokens as far apart as they are long: contiguous, and yet not where the key begins."""
    memory = torch.arange(64.0).half()
    case = rule_cases.norm() | {"key": memory[:24].view(3, 2, 4), "scatter_mode": "Nct"}
    case |= {"value": torch.arange(80.0).half()[:36].view(3, 2, 6), "strides": (8, 12), "offsets": (offset, 2 * offset)}
    scatter_pa_kv_cache(**case)
    assert torch.equal(case["key_cache"][1, 1].flatten(), memory[8 + offset : 16 + offset])
    assert torch.equal(case["value_cache"][0, 0].flatten(), torch.arange(2 * offset, 12 + 2 * offset).half())


def test_lists_for_strides_and_offsets_are_taken() -> None:
    case = rule_cases.nct()
    scatter_pa_kv_cache(**(case | {"strides": list(case["strides"]), "offsets": list(case["offsets"])}))
