"""What the tests of the gather share: tensors, and a call compared with golden in all of its memory."""

import torch

from scatter_pa_kv_cache import gather_pa_kv_cache
from scatter_pa_kv_cache.golden.gather import reference
from scatter_pa_kv_cache.golden.slots import bits


def ints(*numbers, dtype=torch.int32):
    return torch.tensor(numbers, dtype=dtype)


def noise(*shape, dtype=torch.bfloat16, seed=0):
    random = torch.Generator().manual_seed(seed + sum(shape))
    unit = torch.empty(0, dtype=dtype).element_size()
    return torch.randint(0, 256, (*shape[:-1], shape[-1] * unit), generator=random, dtype=torch.uint8).view(dtype)


def whole(tensor):
    """The memory of a tensor as integers."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    return bits(tensor).as_strided((size,), (1,), 0)


def check(key_cache, value_cache, tables, lengths, key, value, **words):
    """Gather, and compare all of the memory of key and value with golden's."""
    memories = {}
    wanted = []
    for out in (key, value):
        memory = memories.setdefault(out.untyped_storage().data_ptr(), whole(out).clone())
        wanted.append(memory.view(out.dtype).as_strided(out.shape, out.stride(), out.storage_offset()))
    reference(key_cache, value_cache, tables, lengths, *wanted, **words)
    gather_pa_kv_cache(key_cache, value_cache, tables, lengths, key, value, **words)
    assert all(torch.equal(whole(out), whole(want)) for out, want in zip((key, value), wanted, strict=True))
