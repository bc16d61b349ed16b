"""What the tests of other libraries' calls share: their inputs, and golden's caches."""

import inspect

import torch
from sim_cases import memory, noise, twin

from scatter_pa_kv_cache.golden import norm, pa_nz


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def fused(tokens, heads, sizes, dtype, random):
    """Key and value as slices of one matrix, as a fused projection leaves them; apart where their sizes differ."""
    if sizes[0] == sizes[1]:
        return noise((tokens, 3, heads, sizes[0]), dtype, random).unbind(1)[1:]
    return [noise((tokens, heads, size), dtype, random) for size in sizes]


def sample(tokens, capacity, random, dtype=torch.int64):
    """Slots without repeats."""
    return torch.randperm(capacity, generator=random)[:tokens].to(dtype)


def check(call, key, value, caches, slots, *, golden="norm"):
    """Make the call and compare all memory of the caches, whatever their strides, with golden's.

    ``golden`` sees the caches as [NB, BS, H, D], or as PA_NZ.
    """
    expected = twin(dict(enumerate(caches)))
    (norm if golden == "norm" else pa_nz).reference(key, expected[0], slots, value, expected[1])
    assert call() is None
    for number, cache in enumerate(caches):
        assert torch.equal(memory(cache), memory(expected[number]))


def parameters(function):
    """Names, kinds and defaults, without annotations."""
    signature = inspect.signature(function)
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(inspect.Signature(bare))
