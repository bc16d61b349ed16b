"""Gated launches of the kernels of wrong_kernels."""

import time

import pytest
import torch
from wrong_kernels import ROW

from scatter_pa_kv_cache.gate import launch
from scatter_pa_kv_cache.runtime import Kernel

SLOW = pytest.mark.slow


def kernel(name="scatter", **arguments):
    return Kernel(f"wrong_kernels:{name}_kernel", tuple(arguments.items()))


def call(name="scatter", *, stage="values", tokens=6, rows=16, seed=0, **arguments):
    """One gated launch of a kernel of wrong_kernels; returns the new cache, equal to golden."""
    random = torch.Generator().manual_seed(seed)
    source = torch.randn(tokens, ROW, generator=random).bfloat16()
    index = torch.randperm(rows, generator=random)[:tokens].int()
    cache = torch.randn(rows, ROW, generator=random).bfloat16()
    golden = cache.clone()
    golden[index.long()] = source
    before = cache.clone()
    try:
        (result,) = launch(
            kernel(name, **arguments), stage, (source, index[None], cache[:, None, None], cache), {3: golden}
        ).values()
    finally:
        assert torch.equal(cache, before)
    assert torch.equal(result, golden)
    return result


def wait_for(condition):
    """At most a minute."""
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.05)
    raise TimeoutError
