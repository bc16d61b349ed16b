"""The MLA prolog: its golden by literal examples and in fp64, and its kernels in sim."""

import _checkout  # noqa: F401
import pytest
import torch
from fused_runs import configs, named, run_and_show

from scatter_pa_kv_cache.fused import launches
from scatter_pa_kv_cache.golden.mla_prolog import reference
from scatter_pa_kv_cache.golden.stages import quantise_groups, rms_norm, rotate_pairs_apart, to_int8


@pytest.mark.parametrize("config", configs("mla_prolog"))
def test_sim(config):
    result = run_and_show(config)
    assert not any(output.differ for output in result.closeness if output.name == "nope_cache")


def test_ties_go_to_the_even_integer_and_overflow_saturates():
    numbers = torch.tensor([0.5, 1.5, 2.5, -0.5, 200.0, -300.0])
    assert to_int8(numbers).tolist() == [0, 2, 2, 0, 127, -128]


def test_two_groups_quantised():
    rows = torch.tensor([[1, -2, 4, 0.5, 0.25, -0.25, 0.125, 0]]).bfloat16()
    numbers, scales = quantise_groups(rows, 2)
    assert numbers.tolist() == [[32, -64, 127, 16, 127, -127, 64, 0]]
    assert scales[0].tolist() == pytest.approx([0.0314961, 0.0019685], abs=1e-7)


def test_a_group_of_zeros_has_scale_zero():
    numbers, scales = quantise_groups(torch.tensor([[0.0, 0.0, 3.0, 1.0]]).bfloat16(), 2)
    assert numbers.tolist() == [[0, 0, 127, 42]]
    assert scales[0, 0] == 0


def test_pairs_are_split_and_stay_so():
    rows, cos, sin = (torch.tensor([row]).bfloat16() for row in ([1.0, 2, 3, 4], [0.5, 0, 0.5, 0], [0.5, 1, 0.5, 1]))
    assert rotate_pairs_apart(rows, cos, sin).tolist() == [[-0.5, -4, 1.5, 3]]


def test_the_norm_counts_epsilon_and_is_within_an_ulp_of_fp64():
    random = torch.Generator().manual_seed(0)
    rows, gamma = torch.randn(64, 128, generator=random).bfloat16(), torch.randn(128, generator=random).bfloat16()
    rows[0] *= 1e-4
    exact = rows.double() / (rows.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * gamma.double()
    got = rms_norm(rows.float(), gamma, 1e-5).double()
    assert ((got - exact).abs() <= 2.0**-8 * exact.abs()).all()
    assert got[0].abs().max() < 0.5


def test_one_index_tensor_serves_every_cache():
    (launch,) = launches(named("mla_tail_9"))
    assert sum(tensor.dtype == torch.int64 for tensor in launch.tensors) == 1
    for read, written in zip(launch.tensors[6:9], launch.tensors[9:12], strict=True):
        assert read.data_ptr() == written.data_ptr()


def test_padding_writes_nowhere():
    kv, table = torch.ones(2, 6).bfloat16(), torch.ones(2, 2).bfloat16()
    caches = [torch.zeros(1, 4, 1, width).bfloat16() for width in (2, 4)]
    reference(kv, torch.ones(4).bfloat16(), table, table, torch.tensor([-1, 2]), *caches)
    for cache in caches:
        assert cache[0, :, 0].any(-1).tolist() == [False, False, True, False]
