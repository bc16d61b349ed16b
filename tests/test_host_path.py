"""What a repeated call may remember, and what it must read anew."""

import _checkout  # noqa: F401
import pytest
import rule_cases
import torch

from scatter_pa_kv_cache import InvalidParameterError, TilingError, plan, planning, scatter_pa_kv_cache
from scatter_pa_kv_cache.reference import run_golden
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


def test_calls_of_one_signature_are_decided_once(monkeypatch: pytest.MonkeyPatch) -> None:
    planning._decisions.clear()
    plan(**rule_cases.norm())
    monkeypatch.setattr(planning, "normalise", None)  # what decides would call it
    second = plan(**rule_cases.norm())
    assert isinstance(second, TokenPlan)


@pytest.mark.parametrize(
    "change",
    [
        {"slot_mapping": torch.tensor([0, 5])},
        {"cache_mode": "norm"},
        {"soc": "A1"},
        {"key_dtype": "hifloat8"},
        {"run_mode": "npu"},
    ],
    ids=str,
)
def test_what_is_remembered_does_not_admit_what_is_refused(change: dict) -> None:
    case = rule_cases.norm()
    plan(**case)
    with pytest.raises((InvalidParameterError, TilingError)):
        plan(**(case | change))


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
