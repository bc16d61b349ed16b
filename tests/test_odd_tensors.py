"""Tensors that are not dense numbers in memory are refused in a sentence, also after a call of the same shapes."""

import _checkout  # noqa: F401
import pytest
import rule_cases
import torch

from scatter_pa_kv_cache import InvalidParameterError, plan, scatter_pa_kv_cache

KEY = rule_cases.norm()["key"]
ODD = {
    "of layout torch.sparse_coo": KEY.to_sparse(),
    "of layout torch._mkldnn": KEY.float().to_mkldnn(),
    "nested": torch.nested.nested_tensor(list(KEY), layout=torch.jagged),
    "a view that negates": torch.complex(KEY.float(), KEY.float()).conj().imag,
}


@pytest.mark.parametrize("name", ["key", "key_cache", "slot_mapping", "value"])
@pytest.mark.parametrize("what", ODD)
def test_odd_tensors(what: str, name: str) -> None:
    case = rule_cases.norm()
    plan(**case)
    before = case["key_cache"].clone()
    with pytest.raises(InvalidParameterError, match=f"^{name} is {what}; it must be (a dense tensor|resolved)"):
        scatter_pa_kv_cache(**(case | {name: ODD[what]}))
    assert torch.equal(case["key_cache"], before)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_of_no_layout() -> None:
    nested = torch.nested.nested_tensor(list(KEY))
    with pytest.raises(InvalidParameterError, match=r"^value is nested; it must be a dense tensor"):
        plan(**(rule_cases.norm() | {"value": nested}))


def test_a_negating_view_of_a_remembered_shape() -> None:
    case = rule_cases.norm(torch.float32)
    plan(**case)
    negates = torch.complex(case["key"], case["key"]).conj().imag.contiguous()
    plan(**(case | {"key": negates}))
    with pytest.raises(InvalidParameterError, match="resolve_neg"):
        plan(**(case | {"key": torch._neg_view(case["key"])}))
