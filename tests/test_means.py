"""How far from golden sim lets a Rope mean be: nowhere but where the order of adding decides a rounding."""

import _checkout  # noqa: F401
import pytest
import torch

from scatter_pa_kv_cache.golden.mean import mean
from scatter_pa_kv_cache.means import mean_bound


def bound(columns: list[list[float]], dtype: torch.dtype) -> list[float]:
    rows = torch.tensor(columns).t().to(dtype)
    return mean_bound(rows, mean(rows)).tolist()


def test_a_mean_that_rounds_to_one_number_must_be_that() -> None:
    """Of 1, 2 and 4: 2.333..., far from the middle between two numbers of 16 bits."""
    assert bound([[1, 2, 4], [1, 2, 3]], torch.float16) == [0, 0]
    assert bound([[1, 2, 4], [1, 2, 3]], torch.bfloat16) == [0, 0]


def test_a_mean_in_the_middle_of_two_numbers_may_be_either() -> None:
    """1 and 1 + 2**-10 in fp16: the middle, which golden rounds to the even one, 1; the other is 2**-10 off."""
    assert bound([[1, 1 + 2**-10]], torch.float16) == [2**-10]
    assert bound([[1, 1 + 2**-7]], torch.bfloat16) == [2**-7]


def test_a_sum_that_cancels_may_be_off_by_what_it_lost() -> None:
    """2**24, 1 and -2**24 in fp32: 0 or 1/3 by the order, and 4/3 * 2**-24 * (2**25 + 1) about 1/3 in any."""
    assert mean(torch.tensor([[2.0**24], [1.0], [-(2.0**24)]])).item() == 0
    assert bound([[2.0**24, 1, -(2.0**24)]], torch.float32)[0] == pytest.approx(3, rel=1e-6)


def test_only_the_sign_of_a_zero_is_free() -> None:
    (free,) = bound([[-0.0, -0.0]], torch.float16)
    assert 0 < free < torch.finfo(torch.float16).smallest_normal / 2**10


@pytest.mark.parametrize("number", [torch.inf, torch.nan])
def test_what_is_not_finite_is_left_to_golden(number: float) -> None:
    """The gate lets a NaN be another NaN there, and infinities only be themselves."""
    assert bound([[number, 1]], torch.float16) == [torch.inf]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_any_order_is_within_the_bound(dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    for count in (2, 7, 96, 500):
        rows = torch.randn(count, 64, generator=random).to(dtype)
        allowed = mean_bound(rows, mean(rows))
        for _ in range(20):
            order = torch.randperm(count, generator=random)
            off = (mean(rows[order]).float() - mean(rows).float()).abs()
            assert (off <= allowed).all()


def test_a_mean_in_half_precision_is_outside() -> None:
    rows = torch.rand(96, 64, generator=torch.Generator().manual_seed(0)).half()
    total = torch.zeros(64, dtype=torch.float16)
    for row in rows:
        total = total + row
    off = (total / 96 - mean(rows)).float().abs()
    assert (off > mean_bound(rows, mean(rows))).any()
