"""The checker: what it says of right, of wrong and of nearly right caches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import _checkout  # noqa: F401
import pytest
import torch
from faults import FAULTS, touched_neighbour

from scatter_pa_kv_cache import checker
from scatter_pa_kv_cache.checker import compare, gaps_touched, mean_rows
from scatter_pa_kv_cache.config import Config
from scatter_pa_kv_cache.configs import CONFIGS
from scatter_pa_kv_cache.inputs import make_inputs
from scatter_pa_kv_cache.reference import run_golden

CONFIG = {config.name: config for config in CONFIGS}
Fault = Callable[[dict[str, Any]], None]


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


def test_equal_bits_are_equal() -> None:
    cache = torch.tensor([[1.0, math.nan], [math.inf, -0.0]])
    report = compare(cache.clone(), cache, ones(2, 2))
    assert (report.equal, report.passed, report.field) == (True, True, True)
    assert (report.wrong, report.first, report.max_difference, report.neighbours) == (0, None, 0.0, 0)
    assert str(report) == "bit-exact"


def test_wrong_elements_are_counted_and_the_first_is_named() -> None:
    want, before = ones(2, 3, 4), torch.zeros(2, 3, 4)
    got = want.clone()
    got[1, 0, 2], got[1, 2, 3] = 1.5, -2.0
    report = compare(got, want, before)
    assert (report.wrong, report.first, report.max_difference) == (2, (1, 0, 2), 3.0)
    assert (report.equal, report.passed, report.field, report.neighbours) == (False, False, False, 0)
    for words in ("2 of 24 elements wrong", "first at [1, 0, 2]", "max abs difference 3", "neighbours touched: 0"):
        assert words in str(report)


def test_rows_that_golden_leaves_alone_are_neighbours() -> None:
    before = torch.zeros(3, 2, 4)
    want = before.clone()
    want[1, 1] = 7.0
    got = want.clone()
    got[0, 0, :2], got[2, 1, 3], got[1, 1, 0] = 5.0, 5.0, 5.0
    report = compare(got, want, before)
    assert (report.wrong, report.neighbours) == (4, 2)


def test_a_touched_neighbour_never_passes() -> None:
    before = torch.zeros(2, 4)
    got = before.clone()
    got[1, 0] = 1e-6
    report = compare(got, before, before, tolerance=1.0, means=torch.ones(2, 1, dtype=torch.bool))
    assert (report.tolerated, report.field, report.passed) == (True, True, False)


@pytest.mark.parametrize(("other", "field"), [(1.0 + 2**-8, True), (1.0 + 2**-6, False), (math.nan, False)])
def test_the_field_tolerance_is_only_reported(other: float, field: bool) -> None:
    report = compare(torch.tensor([[other]]), ones(1, 1), torch.zeros(1, 1))
    assert (report.equal, report.passed, report.field) == (False, False, field)


def test_nan_payloads_and_the_sign_of_zero_count() -> None:
    want = torch.tensor([[0x7FC1, 0x8000]], dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    got = torch.tensor([[0x7FC0, 0x0000]], dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    report = compare(got, want, want)
    assert (report.wrong, report.max_difference, report.field) == (2, 0.0, True)


def test_nan_for_a_number_is_infinitely_far() -> None:
    assert compare(torch.tensor([[math.nan]]), ones(1, 1), ones(1, 1)).max_difference == math.inf


def test_means_may_differ_by_the_tolerance_and_copies_not() -> None:
    want, before = ones(4, 2), torch.zeros(4, 2)
    got = want.clone()
    got[2, 0] = 1 + 2**-20
    means = torch.tensor([False, False, True, False])[:, None]
    assert compare(got, want, before, tolerance=2**-20, means=means).passed
    assert not compare(got, want, before, tolerance=2**-21, means=means).passed
    got[1, 0] = 1 + 2**-20
    assert not compare(got, want, before, tolerance=2**-20, means=means).passed


@pytest.mark.parametrize(
    ("dtype", "got", "want", "difference"),
    [
        (torch.int8, -128, 127, 255.0),
        (torch.uint16, 0, 65535, 65535.0),
        (torch.uint32, 0, 2**32 - 1, 2.0**32 - 1),
        (torch.int32, -(2**31), 2**31 - 1, 2.0**32 - 1),
        (torch.float8_e4m3fn, 1.0, 1.5, 0.5),
    ],
)
def test_differences_are_exact_in_every_dtype(dtype: torch.dtype, got: float, want: float, difference: float) -> None:
    one, other = torch.tensor([[got]]).to(dtype), torch.tensor([[want]]).to(dtype)
    assert compare(one, other, other).max_difference == difference


def test_hifloat8_differs_by_its_values() -> None:
    one, two = torch.tensor([[0x08]], dtype=torch.uint8), torch.tensor([[0x00]], dtype=torch.uint8)
    assert compare(one, two, two, dtype="hifloat8").max_difference == 1.0
    assert compare(one, two, two).max_difference == 8.0


def test_shapes_and_dtypes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"got is torch\.float32 \[2, 3\]; it must be as want"):
        compare(ones(2, 3), ones(2, 4), ones(2, 4))
    with pytest.raises(ValueError, match=r"before is torch\.float16"):
        compare(ones(2), ones(2), ones(2, dtype=torch.float16))


@pytest.mark.parametrize("name", ["norm_interleaved", "norm_padded_blocks", "norm_packed", "norm_one_token"])
def test_gaps_are_the_memory_of_no_cache(name: str) -> None:
    got, before = make_inputs(CONFIG[name]), make_inputs(CONFIG[name])
    caches = ("key_cache", "value_cache")
    old = [before[cache] for cache in caches]
    assert gaps_touched([got[cache] for cache in caches], old) == 0
    run_golden(got)
    assert gaps_touched([got[cache] for cache in caches], old) == 0
    if name == "norm_padded_blocks":
        cache = got["value_cache"].view(torch.int16)
        gap = cache.as_strided((1,), (1,), cache[0].numel())
        gap ^= -1
        assert gaps_touched([got[cache] for cache in caches], old) == 1


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("name", ["norm_tail_of_one", "nhsd_interleaved", "norm_int8"])
def test_known_faults_are_caught(name: str, fault: Fault) -> None:
    got, want, before = (make_inputs(CONFIG[name]) for _ in range(3))
    run_golden(want)
    fault(got)
    report = compare(got["key_cache"], want["key_cache"], before["key_cache"])
    assert not report.passed
    assert report.wrong > 0
    assert (report.neighbours > 0) == (fault.__name__ in ("shifted_slot", "off_by_one_block", "touched_neighbour"))
    if fault is touched_neighbour:
        assert report.neighbours == 1


def test_mean_rows_are_the_rows_that_are_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(CONFIG["rope_no_gap"], slots="contiguous")
    assert mean_rows(make_inputs(config), "bfloat16") is None  # no tolerance: no row is treated apart
    monkeypatch.setitem(checker.TOLERANCES, "bfloat16", 2**-8)
    rows = mean_rows(make_inputs(config), "bfloat16")
    assert rows is not None
    # windows (9, 5) from row 0 on, (7, -1), two empty tasks, (8, 0) from row 72 on, (10, 13) from row 88 on
    assert rows.flatten().nonzero().flatten().tolist() == [5, 32 + 40, 88 + 13]
    assert mean_rows(make_inputs(CONFIG["omni_no_gap"]), "bfloat16") is None


@pytest.mark.parametrize("config", [c for c in CONFIGS if not c.slow and c.tokens < 1000], ids=lambda c: c.name)
def test_golden_writes_what_the_slots_name(config: Config) -> None:
    before, after = make_inputs(config), make_inputs(config)
    run_golden(after)
    for side in config.sides:
        name = f"{side}_cache"
        changed = not checker.same_bits(before[name], after[name])
        assert changed == (config.slots != "all_padding" and config.source_shape("key")[0] > 0)
