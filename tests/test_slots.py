"""Slots from block tables, against plain arithmetic."""

import _checkout  # noqa: F401
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scatter_pa_kv_cache import DataError, InvalidParameterError, slots_from_block_table

TABLE = torch.tensor([[7, 2, -1], [4, 0, 9]], dtype=torch.int32)


def plain(table, positions, block_size, sequences):
    slots = []
    for position, sequence in zip(positions, sequences, strict=True):
        if position < 0 or sequence < 0 or table[sequence][position // block_size] < 0:
            slots.append(-1)
        else:
            slots.append(table[sequence][position // block_size] * block_size + position % block_size)
    return slots


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(st.data())
def test_random_tables(data):
    batch, width, size = (data.draw(st.integers(1, 4)) for _ in range(3))
    table = data.draw(
        st.lists(st.lists(st.integers(-1, 9), min_size=width, max_size=width), min_size=batch, max_size=batch)
    )
    tokens = data.draw(st.lists(st.tuples(st.integers(-2, width * size - 1), st.integers(-1, batch - 1)), max_size=12))
    positions, sequences = [token[0] for token in tokens], [token[1] for token in tokens]
    dtypes = [data.draw(st.sampled_from([torch.int32, torch.int64])) for _ in range(3)]
    slots = slots_from_block_table(
        torch.tensor(table, dtype=dtypes[0]),
        torch.tensor(positions, dtype=dtypes[1]),
        size,
        torch.tensor(sequences, dtype=dtypes[2]),
    )
    assert slots.dtype == dtypes[0]
    assert slots.tolist() == plain(table, positions, size, sequences)


def test_one_token_a_sequence():
    assert slots_from_block_table(TABLE, torch.tensor([5, 8]), 4).tolist() == [9, 36]
    assert slots_from_block_table(TABLE, torch.tensor([9, -1]), 4).tolist() == [-1, -1]


def test_no_tokens_and_no_blocks():
    assert slots_from_block_table(
        TABLE, torch.tensor([], dtype=torch.int64), 4, torch.tensor([], dtype=torch.int64)
    ).shape == (0,)
    assert slots_from_block_table(TABLE[:, :0], torch.tensor([-1, -1]), 4).tolist() == [-1, -1]
    assert slots_from_block_table(TABLE[:0], torch.tensor([-1]), 4, torch.tensor([-1])).tolist() == [-1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((TABLE[0], torch.tensor([1]), 4), r"block_table has shape \[3\]; it must have rank 2"),
        ((TABLE, torch.tensor([[1, 1]]), 4), r"positions has shape \[1, 2\]; it must have rank 1"),
        ((TABLE, torch.tensor([1, 1]), 0), "block_size is 0; it must be at least 1"),
        ((TABLE.float(), torch.tensor([1, 1]), 4), "block_table is torch.float32; it must be int32 or int64"),
        ((TABLE, torch.tensor([1, 1]).short(), 4), "positions is torch.int16; it must be int32 or int64"),
        ((TABLE, torch.tensor([1, 1, 1]), 4), "positions has 3 entries and block_table 2 sequences"),
        ((TABLE, torch.tensor([1, 1]), 4, torch.tensor([1])), r"sequences has shape \[1\]; it must have positions'"),
        ((TABLE, torch.tensor([1, 1], device="meta"), 4), "positions is on meta; it must be on block_table's device"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, words):
    with pytest.raises(InvalidParameterError, match=words):
        slots_from_block_table(*arguments)


def test_what_is_past_the_table_is_refused():
    with pytest.raises(DataError, match=r"positions\[1\] lies in block 3 of its sequence; block_table must have more"):
        slots_from_block_table(TABLE, torch.tensor([0, 12]), 4)
    with pytest.raises(DataError, match=r"sequences\[0\] is 2; it must be less than block_table's 2 rows"):
        slots_from_block_table(TABLE, torch.tensor([0]), 4, torch.tensor([2]))


def test_compiled():
    torch.compiler.reset()
    compiled = torch.compile(slots_from_block_table, fullgraph=True, backend="aot_eager")
    assert compiled(TABLE, torch.tensor([5, 8]), 4).tolist() == [9, 36]
    assert compiled(TABLE, torch.tensor([3, -1, 0]), 4, torch.tensor([1, 0, -1])).tolist() == [19, -1, -1]


def test_device_data_is_not_read():
    meta = TABLE.to("meta")
    assert slots_from_block_table(meta, torch.tensor([5, 8], device="meta"), 4).shape == (2,)
