"""Random gathers equal golden, and a scatter followed by a gather is the identity."""

import _checkout  # noqa: F401
import pytest
import torch
from gather_calls import check, ints, noise
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scatter_pa_kv_cache import gather_pa_kv_cache, scatter_pa_kv_cache
from scatter_pa_kv_cache.golden.slots import bits

EXAMPLES = settings(
    max_examples=10,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

SIZE = 16  # places a block, of the identity


@st.composite
def calls(draw, mode):
    blocks, size, heads = draw(st.integers(1, 5)), draw(st.sampled_from([1, 3, 8])), 2
    batch, width = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    lengths = draw(st.lists(st.integers(0, (width + 1) * size), min_size=batch, max_size=batch))
    rows = draw(st.integers(max(1, sum(lengths) - 3), sum(lengths) + 3))
    tables = draw(
        st.lists(st.lists(st.integers(-2, blocks), min_size=width, max_size=width), min_size=batch, max_size=batch)
    )
    offset = draw(st.none() | st.lists(st.integers(0, (width + 1) * size), min_size=batch, max_size=batch))
    index = draw(st.sampled_from([torch.int32, torch.int64]))
    sides = []
    for seed in range(2):
        lanes = 16 * (seed + 1)
        if mode == "Norm":
            sides.append((noise(blocks, size, heads, lanes, seed=seed), noise(rows, heads, lanes, seed=seed + 2)))
        else:
            pieces = heads * lanes // 16
            sides.append((noise(blocks, pieces, size, 16, seed=seed), noise(rows, 16 * pieces, seed=seed + 2)))
    (key_cache, key), (value_cache, value) = sides
    cumsum = draw(st.booleans())
    if cumsum:
        lengths = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    words = {"cache_mode": mode, "is_seq_lens_cumsum": cumsum}
    words["seq_offset"] = None if offset is None else ints(*offset, dtype=index)
    return (key_cache, value_cache, ints(*tables, dtype=index), ints(*lengths, dtype=index), key, value), words


@pytest.mark.parametrize("mode", ["Norm", "PA_NZ"])
def test_random_calls(mode):
    @EXAMPLES
    @given(calls(mode))
    def run(call):
        check(*call[0], **call[1])

    run()


@st.composite
def sequences(draw):
    width = draw(st.integers(1, 3))
    lengths = draw(st.lists(st.integers(0, width * SIZE), min_size=1, max_size=4))
    order = draw(st.permutations(range(len(lengths) * width + 1)))
    return [order[number * width : (number + 1) * width] for number in range(len(lengths))], lengths, len(order)


@pytest.mark.parametrize("mode", ["Norm", "PA_NZ"])
def test_scatter_then_gather_is_the_identity(mode):
    @EXAMPLES
    @given(sequences())
    def run(drawn):
        tables, lengths, blocks = drawn
        tokens = sum(lengths)
        slots = [
            table[token // SIZE] * SIZE + token % SIZE
            for table, length in zip(tables, lengths, strict=True)
            for token in range(length)
        ]
        key, value = noise(tokens, 2, 32), noise(tokens, 2, 16)
        shapes = [(blocks, SIZE, 2, 32), (blocks, SIZE, 2, 16)]
        if mode == "PA_NZ":
            shapes = [(blocks, 4, SIZE, 16), (blocks, 2, SIZE, 16)]
        caches = [noise(*shape) for shape in shapes]
        scatter_pa_kv_cache(key, caches[0], ints(*slots), value, caches[1], cache_mode=mode)
        outs = [bits(tensor).bitwise_not().view(torch.bfloat16) for tensor in (key, value)]
        given = [out.flatten(1) for out in outs] if mode == "PA_NZ" else outs
        gather_pa_kv_cache(*caches, ints(*tables), ints(*lengths), *given, cache_mode=mode, is_seq_lens_cumsum=False)
        assert torch.equal(bits(outs[0]), bits(key))
        assert torch.equal(bits(outs[1]), bits(value))

    run()
