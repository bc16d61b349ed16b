"""The row index that the layers of a model share."""

import re

import _checkout  # noqa: F401
import pytest
import torch

from scatter_pa_kv_cache import InvalidParameterError, plan, row_index, scatter_pa_kv_cache


def layer(seed: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    shapes = {"key": (3, 2, 16), "value": (3, 2, 16), "key_cache": (2, 2, 4, 16), "value_cache": (2, 2, 4, 16)}
    return {name: torch.randn(shape, generator=random).half() for name, shape in shapes.items()}


def test_layers_share_one_index() -> None:
    slots = torch.tensor([6, -1, 1], dtype=torch.int32)
    first = layer(0)
    shared = row_index(slots, first["key_cache"], first["value_cache"], scatter_mode="NHSD")
    for seed in (0, 1):
        with_index, with_slots = layer(seed), layer(seed)
        scatter_pa_kv_cache(slot_mapping=shared, scatter_mode="NHSD", **with_index)
        scatter_pa_kv_cache(slot_mapping=slots, scatter_mode="NHSD", **with_slots)
        for name, cache in with_slots.items():
            assert torch.equal(with_index[name], cache)
        assert not torch.equal(with_index["key_cache"], layer(seed)["key_cache"])


def test_an_index_of_another_layout_is_refused() -> None:
    slots = torch.tensor([6, -1, 1], dtype=torch.int32)
    shared = row_index(slots, torch.zeros(2, 2, 5, 16).half(), torch.zeros(2, 2, 5, 16).half(), scatter_mode="NHSD")
    call = layer(0)
    before = call["key_cache"].clone()
    with pytest.raises(
        InvalidParameterError, match="slot_mapping is a RowIndex that was made for caches of another layout"
    ):
        scatter_pa_kv_cache(slot_mapping=shared, scatter_mode="NHSD", **call)
    assert torch.equal(call["key_cache"], before)


def test_an_index_that_fitted_once_is_still_refused_elsewhere() -> None:
    slots = torch.tensor([6, -1, 1], dtype=torch.int32)
    fitting, other = layer(0), layer(1)
    other["key_cache"] = torch.zeros(2, 2, 4, 2, 16).half()[:, :, :, 1]
    shared = row_index(slots, fitting["key_cache"], fitting["value_cache"], scatter_mode="NHSD")
    for _ in range(2):
        plan(slot_mapping=shared, scatter_mode="NHSD", **fitting)
        with pytest.raises(InvalidParameterError, match="made for caches of another layout"):
            plan(slot_mapping=shared, scatter_mode="NHSD", **other)


def test_a_task_takes_no_row_index() -> None:
    key_cache = torch.zeros(2, 4, 1, 16).half()
    shared = row_index(torch.tensor([0, 4]), key_cache, key_cache)
    lens = torch.tensor([1, 1])
    sentence = "slot_mapping is a RowIndex; scenario 4 names a slot for each task, so it must be a tensor [argument]"
    with pytest.raises(InvalidParameterError, match=re.escape(sentence)):
        scatter_pa_kv_cache(
            torch.zeros(2, 1, 16).half(),
            key_cache,
            shared,
            torch.zeros(2, 1, 16).half(),
            key_cache.clone(),
            compress_lens=lens,
            seq_lens=lens,
            scatter_mode="Alibi",
        )
