"""What users of paged-cache writes have reported of other implementations, as calls of this one with the right value.

Here, one test for each kind: padding written to the last slot; a batch of padding alone written as real rows; a fixed
buffer padded beyond the live tokens; int32 slots read as int64, int64 refused; keys and values sliced from a fused
matrix, or transposed, or of float8; a token-wise copy that breaks head-major caches; a block stride read in one mode
alone; one layer of a cache of all layers; a padded cache that is copied; key and value of different head sizes; odd
head sizes; block sizes 1, 7 and 8; no value; no tokens; more slots than tokens; a cache or source of another dtype; the
last token read past its end; an address that overflows 32 bits; a duplicate slot; a last axis with gaps; missing
strides of a fused buffer; the default layout.

Elsewhere: a key longer than its slots: test_compat_vllm, test_tokens_are_counted_by_the_slots. The default layout of
torch_npu's call: test_compat_ascend, test_norm_caches_under_the_default_are_refused_with_the_remedy. Writes that a
compiled graph drops or reorders: test_op, test_a_compiled_write_then_read_equals_eager and test_opcheck. Tokens as wide
as the buffer, and where only the key fits: test_wide_tokens, test_wide_tokens. Caches above 2**31 elements in memory:
test_limits. Prime block sizes and token counts around 256: test_panz_cases. A tile budget counted before alignment:
test_tiling, test_the_largest_tile_is_what_compiles. A torch_npu that cannot load its libraries: test_cli,
test_env_has_a_remedy_for_what_is_missing.
"""

from __future__ import annotations

import _checkout  # noqa: F401
import pytest
import torch
from invalid_calls import on_meta
from sim_cases import Case, memory, noise, twin

from scatter_pa_kv_cache import DataError, InvalidParameterError, TilingError, plan, scatter_pa_kv_cache
from scatter_pa_kv_cache.golden.slots import bits
from scatter_pa_kv_cache.indexing import row_index

HALF, BHALF = torch.float16, torch.bfloat16
RANDOM = torch.Generator()
MODES = {"norm": {}, "nhsd": {"scatter_mode": "NHSD"}, "pa_nz": {"cache_mode": "PA_NZ"}}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    RANDOM.manual_seed(0)


def rows_of(cache: torch.Tensor, slot: int, kind: str) -> torch.Tensor:
    """Where a slot's token lies, as a view: [H, D], or PA_NZ's 32-byte chunks."""
    block_size = cache.shape[1 if kind == "norm" else 2]
    block = bits(cache)[slot // block_size]
    return block[slot % block_size] if kind == "norm" else block[:, slot % block_size]


def written(case: Case) -> None:
    """Make the call; all memory of its caches must be what plain assignments leave there."""
    kind = "pa_nz" if case.get("cache_mode") == "PA_NZ" else "nhsd" if case.get("scatter_mode") == "NHSD" else "norm"
    wanted = twin(case)
    for name in ("key", "value") if "value" in case else ("key",):
        for token, slot in enumerate(case["slot_mapping"].tolist()):
            if slot >= 0:
                rows = rows_of(wanted[f"{name}_cache"], slot, kind)
                rows.copy_(bits(case[name])[token].reshape(rows.shape))
    scatter_pa_kv_cache(**case)
    for name in {"key_cache", "value_cache"} & case.keys():
        assert torch.equal(memory(case[name]), memory(wanted[name])), name


def call(
    kind: str = "norm",
    *,
    slots: list[int],
    blocks: int = 2,
    block_size: int = 4,
    heads: int = 2,
    sizes: tuple[int, int] = (16, 16),
    dtype: torch.dtype = HALF,
    index: torch.dtype = torch.int32,
) -> Case:
    case: Case = {"slot_mapping": torch.tensor(slots, dtype=index)} | MODES[kind]
    unit = 32 // dtype.itemsize
    for name, size in zip(("key", "value"), sizes, strict=True):
        case[name] = noise((len(slots), heads, size), dtype, RANDOM)
        shapes = {
            "norm": (blocks, block_size, heads, size),
            "nhsd": (blocks, heads, block_size, size),
            "pa_nz": (blocks, heads * size // unit, block_size, unit),
        }
        case[f"{name}_cache"] = noise(shapes[kind], dtype, RANDOM)
    return case


@pytest.mark.parametrize("kind", MODES)
def test_padding_is_not_written_to_the_last_slot(kind: str) -> None:
    case = call(kind, slots=[0, 1, -1, -1])
    last = [rows_of(case[name], 7, kind).clone() for name in ("key_cache", "value_cache")]
    written(case)
    for name, before in zip(("key_cache", "value_cache"), last, strict=True):
        assert torch.equal(rows_of(case[name], 7, kind), before)


@pytest.mark.parametrize("kind", MODES)
def test_a_batch_of_padding_alone_writes_nothing(kind: str) -> None:
    """16 sequences of 256 tokens."""
    written(call(kind, slots=[-1] * 16 * 256, blocks=33, block_size=128))


def test_a_fixed_buffer_padded_beyond_the_live_tokens() -> None:
    written(call(slots=[6, 1, 3, -1, -1, -1, -1, -1]))


@pytest.mark.parametrize("kind", MODES)
def test_int32_and_int64_slots_are_the_same_slots(kind: str) -> None:
    case = call(kind, slots=[5, 0, -1, 6])
    other = twin(case) | {"slot_mapping": case["slot_mapping"].long()}
    written(case)
    written(other)
    assert torch.equal(bits(case["key_cache"]), bits(other["key_cache"]))


@pytest.mark.parametrize("dtype", [BHALF, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("how", ["unbind", "split"])
def test_slices_of_a_fused_matrix(how: str, dtype: torch.dtype) -> None:
    case = call(slots=list(range(8)), heads=3, sizes=(128, 128), dtype=dtype)
    if how == "unbind":
        case["key"], case["value"] = noise((8, 3, 3, 128), dtype, RANDOM).unbind(1)[1:]
    else:
        parts = noise((8, 3 * 3 * 128), dtype, RANDOM).split(3 * 128, dim=1)
        case["key"], case["value"] = (part.view(8, 3, 128) for part in parts[1:])
    written(case)


def test_one_token_axis_moved_from_behind() -> None:
    case = call(slots=[4, 0, 7], heads=1)
    case |= {name: noise((1, 3, 16), HALF, RANDOM).transpose(0, 1) for name in ("key", "value")}
    written(case)


def test_head_major_caches_keep_the_neighbours_of_every_head() -> None:
    written(call("nhsd", slots=[17, 0, 31], block_size=16, heads=4, sizes=(64, 64)))


@pytest.mark.parametrize("kind", MODES)
def test_the_block_stride_of_interleaved_caches_is_read_in_every_mode(kind: str) -> None:
    case = call(kind, slots=[33, 2, 95], blocks=6, block_size=16, sizes=(64, 64))
    both = noise((6, 2, *case["key_cache"].shape[1:]), HALF, RANDOM)
    written(case | {"key_cache": both[:, 0], "value_cache": both[:, 1]})


def test_one_layer_of_a_cache_of_all_layers() -> None:
    whole = noise((4, 3, 8, 1, 576), BHALF, RANDOM)
    key = noise((3, 1, 576), BHALF, RANDOM)
    written({"key": key, "key_cache": whole[:, 1], "slot_mapping": torch.tensor([31, 8, 0])})


@pytest.mark.parametrize("kind", MODES)
def test_a_cache_of_padded_pages_is_written_through(kind: str) -> None:
    case = call(kind, slots=[15, 4, 0], blocks=4)
    for name in ("key_cache", "value_cache"):
        shape = case[name].shape
        block = shape[1:].numel()
        case[name] = noise((4, block + 64), HALF, RANDOM)[:, :block].unflatten(1, shape[1:])
        assert not case[name].is_contiguous()
    written(case)


@pytest.mark.parametrize("sizes", [(192, 128), (512, 64), (128, 192)])
def test_key_and_value_of_different_head_sizes(sizes: tuple[int, int]) -> None:
    written(call(slots=[3, -1, 6], sizes=sizes, dtype=BHALF))


@pytest.mark.parametrize("size", [56, 72, 80, 96, 120])
def test_odd_head_sizes(size: int) -> None:
    written(call(slots=[3, 6], sizes=(size, size)))


@pytest.mark.parametrize("kind", MODES)
@pytest.mark.parametrize("block_size", [1, 7, 8])
def test_block_sizes(block_size: int, kind: str) -> None:
    written(call(kind, slots=[8, 0, 2], blocks=9, block_size=block_size))


@pytest.mark.parametrize("absent", [None, torch.zeros((), dtype=HALF)], ids=["none", "rank 0"])
def test_no_value(absent: torch.Tensor | None) -> None:
    case = call(slots=[5, -1])
    alone = {name: case[name] for name in ("key", "key_cache", "slot_mapping")}
    other = twin(alone)
    written(alone)
    scatter_pa_kv_cache(**other, value=absent, value_cache=absent)
    assert torch.equal(other["key_cache"].view(torch.int16), alone["key_cache"].view(torch.int16))


@pytest.mark.parametrize("kind", MODES)
def test_no_tokens(kind: str) -> None:
    written(call(kind, slots=[]))


def refused(case: Case, error: type[Exception], words: str) -> None:
    before = [memory(case[name]).clone() for name in ("key_cache", "value_cache")]
    with pytest.raises(error, match=words):
        scatter_pa_kv_cache(**case)
    assert all(
        torch.equal(memory(case[f"{name}_cache"]), was) for name, was in zip(("key", "value"), before, strict=True)
    )


@pytest.mark.parametrize("kind", MODES)
def test_more_slots_than_tokens_are_not_cut(kind: str) -> None:
    case = call(kind, slots=list(range(6)))
    refused(
        case | {"slot_mapping": torch.arange(7)}, TilingError, "slot_mapping has 7 slots; .* each of key's 6 tokens"
    )
    refused(case | {"value": case["value"][:5]}, TilingError, "value has shape .5, 2, 16.; its first two dims")


@pytest.mark.parametrize(("source", "cache"), [(BHALF, HALF), (torch.uint8, torch.float8_e4m3fn)], ids=str)
@pytest.mark.parametrize("kind", MODES)
def test_bits_are_not_stored_as_another_dtype(kind: str, source: torch.dtype, cache: torch.dtype) -> None:
    case = call(kind, slots=[0, 1], sizes=(32, 32), dtype=cache)
    case |= {name: noise((2, 2, 32), source, RANDOM) for name in ("key", "value")}
    refused(case, InvalidParameterError, "key_cache is .*; it must have key's dtype|key is uint8; for scenario 7")


def test_the_last_token_is_not_read_past_its_end() -> None:
    """Rows of 200 bytes, no multiple of 32, that end with the memory."""
    case = call(slots=[7, 2, 5], heads=1, sizes=(100, 100))
    written(case)
    assert case["key"].untyped_storage().nbytes() == 3 * 100 * 2


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_a_slot_whose_address_overflows_32_bits(index: torch.dtype, layers: int) -> None:
    """Slot 3,730,000 of 576 elements: the row number fits, the element's does not."""
    slot, block_size = 3_730_000, 64
    cache = torch.empty(slot // block_size + 1, layers, block_size, 1, 576, dtype=BHALF, device="meta")[:, -1]
    shared = row_index(torch.tensor([slot, -1], dtype=index), cache)
    row = slot // block_size * layers * block_size + slot % block_size
    assert shared.indexes[0].tolist() == [[row, -1]]
    assert row * shared.layouts[0].row == slot // block_size * cache.stride(0) + slot % block_size * 576 > 2**31
    key = torch.empty(2, 1, 576, dtype=BHALF, device="meta")
    case: Case = {"key": key, "key_cache": cache, "slot_mapping": torch.empty(2, dtype=index, device="meta")}
    with pytest.raises(InvalidParameterError, match="run_mode"):  # accepted, up to the device that it needs
        plan(**case, run_mode="npu")


@pytest.mark.parametrize("kind", MODES)
def test_a_duplicate_slot_is_refused(kind: str) -> None:
    refused(call(kind, slots=[2, 1, -1, 1]), DataError, r"slot_mapping\[1\] and slot_mapping\[3\] are both 1")


@pytest.mark.parametrize("kind", MODES)
def test_a_last_axis_with_gaps_is_refused(kind: str) -> None:
    case = call(kind, slots=[0, 1])
    gaps = noise((*case["key_cache"].shape, 4), HALF, RANDOM)[..., 0]
    refused(case | {"key_cache": gaps}, TilingError, "key_cache has stride 4 along its last axis: it must be 1")


@pytest.mark.parametrize("name", ["strides", "offsets"])
def test_missing_strides_of_a_fused_buffer_are_refused(name: str) -> None:
    case = call(slots=[0, 1]) | {"scatter_mode": "Nct", "strides": (32, 32), "offsets": (0, 0)}
    refused(case | {name: None}, TilingError, f"{name} is None; Nct must have two entries")
    refused(case | {name: (1,)}, TilingError, "Nct must have two entries")


def test_a_call_that_names_no_layout_means_norm() -> None:
    case = call(slots=[0, 5])
    named = twin(case) | {"cache_mode": "Norm"}
    written(case)
    scatter_pa_kv_cache(**named)
    assert torch.equal(named["key_cache"].view(torch.int16), case["key_cache"].view(torch.int16))
    with pytest.raises(TilingError):
        plan(**on_meta(case), cache_mode="PA_NZ")
