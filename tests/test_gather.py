"""GatherPaKvCache in sim: the worked examples, shapes, dtypes, strides and limits."""

import _checkout  # noqa: F401
import pytest
import torch
from gather_calls import check, ints, noise

from scatter_pa_kv_cache import SimulationError, gather_pa_kv_cache, gather_plan, gather_rules, gather_sim
from scatter_pa_kv_cache.golden.slots import bits
from scatter_pa_kv_cache.kernels.pages import Pages, choose_tile
from scatter_pa_kv_cache.sim import MEMORY_VARIABLE
from scatter_pa_kv_cache.sim_process import WORKER

TABLES = [[3, 1, 0], [2, -1, 7], [0, 0, 0]]


def numbered(blocks=4, block_size=2, width=8):
    """A cache [NB, BS, 1, width] whose rows are 1000 + 100 * block + 10 * place + column."""
    block = 100 * torch.arange(blocks)[:, None] + 10 * torch.arange(block_size)
    return (1000 + block[:, :, None, None] + torch.arange(width)).float()


def gathered(lengths, tokens, *, offset=None, index=torch.int32, fill=-9.0, cumsum=False):
    """Column 0 of key after a gather from :func:`numbered` with TABLES; value must say the same."""
    cache = numbered()
    key = torch.full((tokens, 1, 8), fill)
    value = key.clone()
    offset = None if offset is None else ints(*offset, dtype=index)
    tables, lengths = ints(*TABLES, dtype=index), ints(*lengths, dtype=index)
    gather_pa_kv_cache(cache, cache + 1, tables, lengths, key, value, seq_offset=offset, is_seq_lens_cumsum=cumsum)
    columns = torch.arange(8)
    written = (key[:, 0, :1] != fill) & (key[:, 0, :1] != 0)
    assert torch.equal(key[:, 0], torch.where(written, key[:, 0, :1] + columns, key[:, 0, :1].expand(-1, 8)))
    assert torch.equal(value, torch.where(written[:, :, None], key + 1, key))
    return key[:, 0, 0].int().tolist()


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("lengths", "offset", "expected"),
    [
        ((3, 0, 2), None, [1300, 1310, 1100, 1000, 1010]),
        ((3, 0, 2), (3, 0, 0), [1100, 1110, 1000, 1000, 1010]),
        ((0, 5, 1), None, [1200, 1210, 0, 0, 0, 1000]),
        ((7, 0, 0), None, [1300, 1310, 1100, 1110, 1000, 1010, 0]),
    ],
    ids=["lengths", "offset skips whole blocks", "no such block", "past the table"],
)
def test_worked_examples(lengths, offset, expected, index):
    assert gathered(lengths, len(expected), offset=offset, index=index) == expected
    sums = [sum(lengths[:count]) for count in range(4)]
    assert gathered(sums, len(expected), offset=offset, index=index, cumsum=True) == expected


def test_fewer_rows_than_tokens_cut_the_result():
    assert gathered((3, 0, 2), 4) == [1300, 1310, 1100, 1000]


def test_surplus_rows_keep_their_content():
    assert gathered((3, 0, 2), 6) == [1300, 1310, 1100, 1000, 1010, -9]


def test_pa_nz_example():
    cache = torch.arange(2 * 2 * 2 * 16).view(2, 2, 2, 16).half()
    key = torch.zeros(2, 32).half()
    gather_pa_kv_cache(cache, cache, ints([1]), ints(0, 2), key, key.clone(), cache_mode="PA_NZ")
    assert key[1, [0, 15, 16, 31]].int().tolist() == [80, 95, 112, 127]


@pytest.mark.parametrize("empty", ["key_cache", "value_cache", "key", "value"])
def test_an_empty_cache_or_result_is_a_success_that_does_nothing(empty):
    call = {
        "key_cache": numbered(),
        "value_cache": numbered(),
        "key": torch.ones(2, 1, 8),
        "value": torch.ones(2, 1, 8),
    }
    call[empty] = call[empty][:0]
    gather_pa_kv_cache(**call, block_tables=ints(*TABLES), seq_lens=ints(9))  # seq_lens would be refused
    assert torch.equal(call["key"], torch.ones_like(call["key"]))


def test_no_tokens_at_all():
    assert gathered((0, 0, 0), 2) == [-9, -9]


SHAPES = {
    # name: lengths, NB, BS, N, Dk, Dv, table width
    "performance_decode": ((300, 1, 200), 40, 128, 1, 256, 256, 3),
    "performance_two_heads": ((140, 129), 12, 128, 2, 128, 128, 2),
    "function_mla": ((70, 17), 6, 32, 1, 512, 64, 3),
    "function_small_blocks": ((40, 39, 2), 12, 7, 3, 16, 32, 6),
    "boundary_one_token": ((1,), 1, 16, 1, 16, 16, 1),
    "boundary_block_edges": ((16, 15, 17, 32), 9, 16, 1, 64, 48, 2),
    "boundary_one_place_a_block": ((3, 5), 9, 1, 2, 16, 16, 5),
    "boundary_odd_width": ((9, 8), 5, 4, 1, 5, 3, 3),
    "boundary_widest_token": ((2, 1), 3, 2, 37, 2048, 16, 1),
}
NORM_ONLY = ("boundary_odd_width", "boundary_widest_token")  # no multiple of 32 bytes; thousands of pieces


@pytest.mark.parametrize(
    ("name", "mode"),
    [(name, mode) for name in SHAPES for mode in ("Norm", "PA_NZ") if mode == "Norm" or name not in NORM_ONLY],
)
def test_shapes(name, mode):
    lengths, blocks, size, heads, key_size, value_size, width = SHAPES[name]
    random = torch.Generator().manual_seed(len(name))
    tables = torch.randint(-1, blocks + 1, (len(lengths), width), generator=random, dtype=torch.int32)
    sides = []
    for number, head in enumerate((key_size, value_size)):
        if mode == "Norm":
            cache, out = noise(blocks, size, heads, head, seed=number), noise(sum(lengths) + 1, heads, head, seed=7)
        else:
            cache = noise(blocks, heads * head // 16, size, 16, seed=number)
            out = noise(sum(lengths) + 1, heads * head, seed=7)
        sides.append((cache, out))
    (key_cache, key), (value_cache, value) = sides
    check(key_cache, value_cache, tables, ints(*lengths), key, value, cache_mode=mode, is_seq_lens_cumsum=False)


DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "bfloat16", "float32")


@pytest.mark.parametrize("dtype", [*DTYPES, "float8_e5m2", "float8_e4m3fn"])
def test_dtypes_are_copied_bit_for_bit(dtype):
    kind = getattr(torch, dtype)
    lanes = 32 // kind.itemsize
    modes = [("Norm", (4, 3, 1, 5), (1, 5)), ("PA_NZ", (4, 2, 3, lanes), (2 * lanes,))]
    for mode, cache, tail in modes if dtype in ("int8", "bfloat16", "float32") else modes[:1]:
        caches = noise(*cache, dtype=kind), noise(*cache, dtype=kind, seed=1)
        outs = noise(8, *tail, dtype=kind, seed=2), noise(8, *tail, dtype=kind, seed=3)
        check(*caches, ints([3, 0], [-1, 2]), ints(0, 4, 8), *outs, cache_mode=mode)


def test_float8_key_with_a_wider_value():
    key_cache, key = noise(4, 3, 1, 6, dtype=torch.float8_e4m3fn), noise(5, 1, 6, dtype=torch.float8_e4m3fn)
    check(key_cache, noise(4, 3, 1, 6), ints([3, 0]), ints(0, 5), key, noise(5, 1, 6))


def test_the_caches_may_differ_in_blocks():
    """A block that only one of them has is a block of zeros to both."""
    for blocks in ((3, 5), (5, 3)):
        caches = [noise(number, 2, 1, 16) for number in blocks]
        check(*caches, ints([4, 2, 3]), ints(0, 6), noise(6, 1, 16), noise(6, 1, 16, seed=1))


@pytest.mark.parametrize(
    ("tokens", "block_size", "piece", "pieces", "tile"),
    [
        (100_000, 128, 512, 1, 128),
        (1024, 128, 512, 1, 64),  # two caches: 32 of 48 cores
        (1, 128, 512, 1, 4),  # 4 KiB
        (100_000, 128, 1024, 1, 64),  # 128 KiB
        (100_000, 100, 1024, 1, 50),
        (1, 2, 75_776, 1, 1),
        (1024, 128, 16, 32, 128),
    ],
)
def test_tiles(tokens, block_size, piece, pieces, tile):
    pages = Pages("bfloat16", piece, pieces, piece, 0, 0, 0, block_size, piece * pieces, 0)
    assert choose_tile(tokens, block_size, [pages, pages]) == tile


def strided_caches():
    both = noise(5, 2, 8, 2, 16)
    packed = noise(5, 8, 1, 48)
    gapped = noise(5, 12, 2, 16)
    by_head = noise(5, 2, 8, 16).transpose(1, 2)
    layers = noise(5, 3, 8, 1, 16)
    heads = noise(5, 8, 4, 16)
    return {
        "interleaved": (both[:, 0], both[:, 1]),
        "packed": (packed[..., :16], packed[..., 16:]),
        "padded blocks": (gapped[:, :8], gapped[:, 4:]),
        "heads outside places": (by_head, by_head.clone()),
        "layers between blocks": (layers[:, 1], layers[:, 2]),
        "some of the heads": (heads[:, :, ::2], heads[:, :, 1:3]),
    }


@pytest.mark.parametrize("name", strided_caches())
def test_strided_caches_are_read_in_place(name):
    key_cache, value_cache = strided_caches()[name]
    outs = [noise(21, *cache.shape[2:], seed=3) for cache in (key_cache, value_cache)]
    check(key_cache, value_cache, ints([3, 0], [4, 4], [-1, 1]), ints(0, 11, 11, 20), *outs)


def test_results_may_be_slices_of_a_wider_matrix():
    caches = noise(4, 8, 2, 16), noise(4, 8, 2, 16, seed=1)
    fused = noise(13, 6, 16, seed=2)
    check(*caches, ints([3, 0], [-1, 2]), ints(0, 9, 12), fused[:, 2:4], fused[:, 4:])


@pytest.mark.parametrize("side", ["key", "value"])
def test_strides_that_rows_cannot_express_are_refused(side):
    call = {
        "key_cache": numbered(),
        "value_cache": numbered(),
        "key": torch.ones(3, 1, 8),
        "value": torch.ones(3, 1, 8),
    }
    wrong = {
        f"{side}_cache": torch.ones(4, 2, 1, 16)[..., ::2],
        side: torch.ones(3, 1, 16)[..., ::2],
    }
    for name, tensor in wrong.items():
        with pytest.raises(ValueError, match=f"^{name} has .*layout") as caught:
            gather_pa_kv_cache(**call | {name: tensor}, block_tables=ints([0]), seq_lens=ints(0, 2))
        assert caught.value.code == 561002
    for cache in (
        torch.ones(69).as_strided((4, 2, 1, 8), (17, 8, 8, 1)),
        numbered().transpose(0, 1).contiguous().transpose(0, 1),
    ):
        with pytest.raises(ValueError, match="blocks by a multiple of that"):
            gather_pa_kv_cache(**call | {f"{side}_cache": cache}, block_tables=ints([0]), seq_lens=ints(0, 2))


@pytest.mark.parametrize("stage", ["verdicts", "values"])
def test_a_launch_that_goes_wrong_changes_nothing(monkeypatch, stage):
    """Blocks swapped behind the back of sim: golden does not agree, and nothing is copied back."""
    caches = noise(4, 8, 1, 16), noise(4, 8, 1, 16, seed=1)
    outs = noise(9, 1, 16, seed=2), noise(9, 1, 16, seed=3)
    before = [out.clone() for out in outs]
    honest = WORKER.run

    def swapped(launched):
        if launched.stage == stage:
            *tensors, key_rows, value_rows, key, value = launched.tensors
            launched = type(launched)(
                launched.kernel, stage, (*tensors, value_rows, key_rows, key, value), launched.goldens
            )
        return honest(launched)

    monkeypatch.setattr(gather_sim, "_verified", set())
    monkeypatch.setattr(WORKER, "run", swapped)
    with pytest.raises(SimulationError, match="gather_kernel"):
        gather_pa_kv_cache(*caches, ints([3, 0]), ints(0, 9), *outs)
    assert all(torch.equal(bits(out), bits(old)) for out, old in zip(outs, before, strict=True))


def test_less_memory_makes_more_launches_and_the_same_result(monkeypatch):
    counts = []
    honest = WORKER.run
    monkeypatch.setattr(WORKER, "run", lambda launched: counts.append(launched.stage) or honest(launched))
    made = []
    for gibibytes in ("4", "0.004"):
        monkeypatch.setenv(MEMORY_VARIABLE, gibibytes)
        counts.clear()
        caches = noise(40, 16, 1, 64), noise(40, 16, 1, 64, seed=1)
        outs = noise(400, 1, 64, seed=2), noise(400, 1, 64, seed=3)
        check(*caches, torch.arange(40, dtype=torch.int32).flip(0).view(2, 20), ints(0, 250, 400), *outs)
        made.append(counts.count("values"))
    assert made[0] < made[1]


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("cumsum", [True, False])
def test_planning_reads_no_data(cumsum, index):
    """On meta tensors, which have none: what an NPU is handed is dense, and made without waiting for it."""
    shapes = ((9, 16, 2, 64), (9, 16, 2, 32), (4, 3), (4 + cumsum,), (50, 2, 64), (50, 2, 32), (4,))
    dtypes = [index if len(shape) < 3 else torch.bfloat16 for shape in shapes]
    tensors = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in zip(shapes, dtypes, strict=True)]
    tensors = [tensor.repeat_interleave(2, -1)[..., ::2] if tensor.dim() < 3 else tensor for tensor in tensors]
    call = gather_rules.normalise(tuple(tensors), "Norm", cumsum, None)
    assert gather_rules.accept(call.spec)
    plan = gather_plan.make_gather_plan(call)
    handed = plan.tensors(plan.sequences(), [side.rows for side in plan.sides], [side.out for side in plan.sides])
    assert [tuple(tensor.shape) for tensor in handed[:4]] == [(4, 4), (4,), (4,), (4,)]
    assert {tensor.dtype for tensor in handed[:4]} == {torch.int32}
    assert all(tensor.is_contiguous() for tensor in handed)


def test_too_little_memory_is_refused(monkeypatch):
    monkeypatch.setenv(MEMORY_VARIABLE, "0.00001")
    key = noise(9, 1, 16)
    before = key.clone()
    with pytest.raises(SimulationError, match=r"need about .* GiB .*gather fewer tokens"):
        gather_pa_kv_cache(noise(4, 8, 1, 16), noise(4, 8, 1, 16), ints([3, 0]), ints(0, 9), key, key.clone())
    assert torch.equal(bits(key), bits(before))


def test_a_large_cache_is_not_seen_whole():
    """1 GiB of address space, of which three blocks have memory."""
    cache = torch.empty(8192, 128, 1, 512, dtype=torch.bfloat16)  # memory that is never touched
    for block in (8191, 17, 4000):
        cache[block] = noise(128, 1, 512, seed=block)
    check(cache, cache, ints([8191, 17, 4000]), ints(0, 300), noise(300, 1, 512), noise(300, 1, 512, seed=1))
