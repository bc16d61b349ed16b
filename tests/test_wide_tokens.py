"""Rows and tokens as wide as the unified buffer and wider, and of no width at all."""

import re

import _checkout  # noqa: F401
import pytest
import torch

from scatter_pa_kv_cache import TilingError, plan, scatter_pa_kv_cache
from scatter_pa_kv_cache.reference import run_golden


@pytest.mark.parametrize(
    ("heads", "head_size", "value_size", "scatter_mode"),
    [
        (1, 8192 * 3, 8192 * 3, "None"),  # one row of 48 KiB
        (8, 8192 * 3, 64, "None"),  # a token of 384 KiB beside one of 1 KiB
        (2, 8192 * 6 + 2, 2, "None"),  # rows of more than half the buffer, in odd parts
        (2, 4096, 4096, "NHSD"),
    ],
)
def test_wide_tokens(heads: int, head_size: int, value_size: int, scatter_mode: str) -> None:
    random = torch.Generator().manual_seed(0)
    axes = (heads, 3) if scatter_mode == "NHSD" else (3, heads)

    def call() -> dict:
        random.manual_seed(0)
        sizes = {"key": head_size, "value": value_size}
        sources = {name: torch.randn(4, heads, size, generator=random).half() for name, size in sizes.items()}
        caches = {f"{name}_cache": torch.randn(2, *axes, size, generator=random).half() for name, size in sizes.items()}
        return {**sources, **caches, "slot_mapping": torch.tensor([5, -1, 0, 3]), "scatter_mode": scatter_mode}

    got, want = call(), call()
    scatter_pa_kv_cache(**got)
    run_golden(want)
    for name in ("key_cache", "value_cache"):
        assert torch.equal(got[name].view(torch.int16), want[name].view(torch.int16))


def test_what_cannot_be_cut_is_refused() -> None:
    wide, narrow = torch.zeros(1, 3, 8192 * 8), torch.zeros(1, 3, 2)
    with pytest.raises(TilingError, match="do not fit the unified buffer"):
        plan(wide, torch.zeros(1, 1, 3, 8192 * 8), torch.tensor([0]), narrow, torch.zeros(1, 1, 3, 2))


def test_one_empty_side_is_refused() -> None:
    sentence = "key has shape [1, 1, 0], no elements; the other side has some [layout]"
    with pytest.raises(TilingError, match=re.escape(sentence)):
        plan(
            torch.zeros(1, 1, 0),
            torch.zeros(1, 1, 1, 0),
            torch.tensor([0]),
            torch.ones(1, 1, 2),
            torch.zeros(1, 1, 1, 2),
        )
