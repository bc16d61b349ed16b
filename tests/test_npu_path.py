"""What happens before a launch on an NPU reads no data: it runs on meta tensors, which have none."""

import _checkout  # noqa: F401
import pytest
import rule_cases
import torch

from scatter_pa_kv_cache import InvalidParameterError, row_index, scatter_pa_kv_cache
from scatter_pa_kv_cache.arguments import Arguments, normalise
from scatter_pa_kv_cache.planning import template
from scatter_pa_kv_cache.plans import KernelPlan
from scatter_pa_kv_cache.rules import choose


def on_meta(case: dict) -> dict:
    return {name: given.to("meta") if isinstance(given, torch.Tensor) else given for name, given in case.items()}


def plan_for_npu(arguments: Arguments) -> KernelPlan:
    choice = choose(arguments.spec)
    assert choice is not None
    return template(arguments, choice).bind(arguments, "npu", None)


@pytest.mark.parametrize("base", rule_cases.BASES, ids=lambda base: base.__name__)
def test_planning_and_the_launch_tensors_read_nothing(base) -> None:
    arguments = normalise(**on_meta(base()))
    plan = plan_for_npu(arguments)
    assert all(tensor.device.type == "meta" for tensor in plan.tensors())


@pytest.mark.parametrize("base", [rule_cases.norm, rule_cases.nz5, rule_cases.nhsd], ids=lambda base: base.__name__)
def test_a_row_index_reads_nothing(base) -> None:
    case = on_meta(base())
    modes = {name: case[name] for name in ("cache_mode", "scatter_mode") if name in case}
    shared = row_index(case["slot_mapping"], case["key_cache"], case["value_cache"], **modes)
    assert all(index.device.type == "meta" for index in shared.indexes)


@pytest.mark.parametrize("base", rule_cases.BASES, ids=lambda base: base.__name__)
def test_caches_are_passed_as_they_are(base) -> None:
    """Read and written memory of each cache are the caller's own."""
    case = base()
    arguments = normalise(**case)
    plan = plan_for_npu(arguments)
    caches = [case[name] for name in ("key_cache", "value_cache") if case.get(name) is not None and case[name].dim()]
    read, written = plan.tensors()[-2 * len(caches) : -len(caches)], plan.tensors()[-len(caches) :]
    for cache, one, other in zip(caches, read, written, strict=True):
        assert one.data_ptr() == other.data_ptr() == cache.data_ptr()


@pytest.mark.parametrize("base", rule_cases.BASES, ids=lambda base: base.__name__)
def test_a_launch_takes_dense_tensors_alone(base) -> None:
    """PyPTO refuses all others. Index tensors may be given with gaps, as the Ascend backend of vLLM has them."""
    case = base()
    for name in {"slot_mapping", "compress_lens", "compress_seq_offset", "seq_lens"} & case.keys():
        if case[name] is not None:
            case[name] = case[name].repeat_interleave(2, -1)[..., ::2]
    case["key"] = case["key"].transpose(0, 1).contiguous().transpose(0, 1)
    plan = plan_for_npu(normalise(**case))
    assert all(tensor.is_contiguous() for tensor in plan.tensors())


@pytest.mark.parametrize("base", [rule_cases.norm, rule_cases.nz5, rule_cases.nhsd], ids=lambda base: base.__name__)
def test_a_row_index_is_dense(base) -> None:
    case = base()
    modes = {name: case[name] for name in ("cache_mode", "scatter_mode") if name in case}
    gaps = case["slot_mapping"].repeat_interleave(2)[::2]
    shared = row_index(gaps, case["key_cache"], case["value_cache"], **modes)
    assert all(index.is_contiguous() for index in shared.indexes)


def test_a_run_mode_needs_its_device() -> None:
    with pytest.raises(InvalidParameterError, match='run_mode is "npu" but key is on cpu'):
        scatter_pa_kv_cache(**rule_cases.norm(), run_mode="npu")
    with pytest.raises(InvalidParameterError, match="run_mode is 'gpu'"):
        scatter_pa_kv_cache(**rule_cases.norm(), run_mode="gpu")
    with pytest.raises(InvalidParameterError, match='run_mode is "sim" but key is on meta'):
        scatter_pa_kv_cache(**on_meta(rule_cases.norm()), run_mode="sim")
