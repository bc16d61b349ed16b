"""The fused pre-attention and the attention that reads its cache: golden by examples and in fp64, and sim."""

import _checkout  # noqa: F401
import pytest
import torch
from fused_runs import configs, named, run_and_show

from scatter_pa_kv_cache.benchmarks.cost_model import Example, measure
from scatter_pa_kv_cache.fused import launches
from scatter_pa_kv_cache.golden.glm_pre_attention import Weights, decode_attention, linear
from scatter_pa_kv_cache.golden.slots import bits
from scatter_pa_kv_cache.golden.stages import rotate_halves
from scatter_pa_kv_cache.runtime import Kernel


@pytest.mark.parametrize("config", [one for one in configs("glm_pre_attention") if one.id != "glm_read_back"])
def test_sim(config):
    run_and_show(config)


def test_what_phase_1_wrote_is_what_phase_2_reads():
    """Of one row the softmax is 1: the attention of every head is the value row, bit for bit."""
    config = named("glm_read_back")
    result = run_and_show(config)
    (slots,) = next(launches(config)).tensors[15]
    written = result.values["value_cache"][slots.long()]
    attention = result.values["attention"].view(config.tokens, -1, written.shape[-1])
    assert torch.equal(bits(attention), bits(written[:, None].expand_as(attention).contiguous()))


def test_halves_are_paired_and_the_rest_passes():
    head, cos, sin = (torch.tensor([row]).bfloat16() for row in ([1.0, 2, 3, 4, 9], [0.5, 0], [0.5, 1]))
    assert rotate_halves(head, cos, sin).tolist() == [[-1, -4, 2, 2, 9]]


def test_the_bias_is_added_to_integers():
    """Two columns that differ in the bias alone: 2**24 + 1 is no fp32 number, the sum below it is."""
    row, ones = torch.ones(1).bfloat16(), torch.ones(2)
    weights = Weights(
        *(row, row, row, 0 * row),
        weight=torch.tensor([[-1, -1]], dtype=torch.int8),
        bias=torch.tensor([2**24 + 1, 2**24], dtype=torch.int32),
        deq_scale=ones,
        **dict.fromkeys(("query_gamma", "query_beta", "key_gamma", "key_beta"), row),
    )
    assert linear(row[None], weights).tolist() == [[2.0**24, 2.0**24]]
    assert linear(0 * row[None], weights).tolist() == [[2.0**24, 2.0**24]]


def test_attention_is_near_fp64():
    random = torch.Generator().manual_seed(0)
    query = torch.randn(6, 4, 64, generator=random).bfloat16()
    caches = [torch.randn(9, 16, 1, 64, generator=random).bfloat16() for _ in range(2)]
    table = torch.tensor([[3, 0, 8, 5, 1, 2, 7, 4], [6, -1, -1, -1, -1, -1, -1, -1]])
    lengths = torch.tensor([128, 3])
    got = decode_attention(query, *caches, table, lengths, 4)
    for token, (row, length) in enumerate([(0, 126), (0, 127), (0, 128), (1, 1), (1, 2), (1, 3)]):
        keys, values = (cache[table[row].clamp(min=0)].view(-1, 64)[:length].double() for cache in caches)
        weights = torch.softmax(query[token].double() @ keys.T * 64**-0.5, -1)
        exact = weights @ values
        assert ((got[token].double() - exact).abs() <= 1e-2 + 2.0**-7 * exact.abs()).all()


def test_no_rows_leave_zeros():
    query, cache = torch.ones(2, 1, 4).bfloat16(), torch.ones(1, 2, 1, 4).bfloat16()
    got = decode_attention(query, cache, cache, torch.tensor([[0], [-1]]), torch.tensor([1, 0]), 1)
    assert got[0].all()
    assert not got[1].any()


def test_caches_are_full_of_random_rows_and_pairs_share_memory():
    launch = next(launches(named("glm_tail_9")))
    for read, written in zip(launch.tensors[16:18], launch.tensors[18:20], strict=True):
        assert read.data_ptr() == written.data_ptr()
        assert written.all(-1).all()


@pytest.mark.parametrize("tiles", [1, 2])
def test_in_one_kernel_a_read_waits_for_the_last_tile_alone(tiles):
    """Why the phases are two kernels: of two tiles, no read of the cache waits for the first one's scatter."""
    tokens = 8 * tiles
    examples = (
        *(Example((tokens, 64), "float32"), Example((1, tokens), "int32", "arange")),
        *(Example((2, 8, 1, 64), "float32"), Example((16, 64), "float32", memory_of=2), Example((16, 64), "float32")),
    )
    cost = measure(Kernel("fused_traps:write_then_read_kernel", ()), examples)
    scatters = sorted(task.node for task in cost.timeline if task.rows)
    assert len(scatters) == tiles
    followers = [after(cost.graph.successors, node) for node in scatters]
    reads = {task.node for task in cost.timeline if not task.rows and not task.hub}
    assert reads
    assert reads <= followers[-1]
    assert all(not reads & follower for follower in followers[:-1])


def after(successors, node):
    """All nodes that wait for a node."""
    found, left = set(), [node]
    while left:
        for successor in successors[left.pop()]:
            if successor not in found:
                found.add(successor)
                left.append(successor)
    return found
