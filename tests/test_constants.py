"""What is made once for a device is not what a tracer made, nor does a tracer get it."""

import warnings

import _checkout  # noqa: F401
import pytest
import rule_cases
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from scatter_pa_kv_cache import row_index
from scatter_pa_kv_cache.api import plan
from scatter_pa_kv_cache.constants import constant
from scatter_pa_kv_cache.plans import KernelPlan


def launch_tensors(base) -> tuple[torch.Tensor, ...]:
    planned = plan(**base(), check_data=False)
    assert isinstance(planned, KernelPlan)
    return planned.tensors()


@pytest.mark.parametrize("base", rule_cases.BASES, ids=lambda base: base.__name__)
def test_tensors_without_memory_come_and_go(base) -> None:
    for _ in range(2):
        with FakeTensorMode():
            assert all(isinstance(tensor, FakeTensor) for tensor in launch_tensors(base))
        assert all(type(tensor) is torch.Tensor for tensor in launch_tensors(base))


def test_constants_are_made_once() -> None:
    beside = torch.zeros(1)
    assert constant(beside, (7, 5), torch.int32) is constant(torch.nn.Parameter(beside), (7, 5), torch.int32)
    assert constant(beside, (7, 5), torch.int32).tolist() == [7, 5]
    assert constant(beside, (7, 5), torch.int64).dtype == torch.int64


class Indexes(torch.nn.Module):
    def forward(self, slots: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        return row_index(slots, cache, cache_mode="PA_NZ").indexes[0] + 0


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_row_index(strict: bool) -> None:
    given = torch.tensor([5, -1], dtype=torch.int32), torch.zeros(2, 2, 8, 16).half()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*lru_cache.*")
        exported = torch.export.export(Indexes(), given, strict=strict)
    for indexes in (exported.module()(*given), Indexes()(*given)):
        assert type(indexes) is torch.Tensor
        assert indexes.tolist() == [[5, 13, -1, -1]]
