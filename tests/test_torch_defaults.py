"""What a program has set as torch's default device or dtype does not reach a call."""

from collections.abc import Iterator

import _checkout  # noqa: F401
import gather_calls
import pytest
import rule_cases
import torch
from rule_cases import ints

from scatter_pa_kv_cache import plan, row_index, scatter_pa_kv_cache, slots_from_block_table
from scatter_pa_kv_cache.reference import run_golden


@pytest.fixture(params=["device", "dtype"])
def other_default(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "device":
        torch.set_default_device("meta")  # nothing can be computed there
    else:
        torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)


def called(base) -> dict[str, torch.Tensor]:
    with torch.device("cpu"):
        return base()


@pytest.mark.usefixtures("other_default")
@pytest.mark.parametrize("base", rule_cases.BASES, ids=lambda base: base.__name__)
def test_sim_and_golden(base) -> None:
    case, wanted = called(base), called(base)
    scatter_pa_kv_cache(**case)
    run_golden(wanted)
    for name in ("key_cache", "value_cache"):
        assert case[name].equal(wanted[name])
        assert not case[name].dim() or not case[name].equal(called(base)[name])


@pytest.mark.usefixtures("other_default")
@pytest.mark.parametrize("mode", ["Norm", "PA_NZ"])
def test_gather(mode: str) -> None:
    with torch.device("cpu"):
        caches = [gather_calls.noise(3, 4, 2, 16) if mode == "Norm" else gather_calls.noise(3, 2, 4, 16)] * 2
        outs = [gather_calls.noise(9, 2, 16, seed=seed).flatten(1 if mode == "PA_NZ" else 2) for seed in (1, 2)]
        index = ints([2, 0], [1, -1]), ints(0, 5, 9)
    gather_calls.check(*caches, *index, *outs, cache_mode=mode)


@pytest.mark.usefixtures("other_default")
def test_slots_and_indexes_are_where_the_tensors_are() -> None:
    case = called(rule_cases.nz5)
    shared = row_index(case["slot_mapping"], case["key_cache"], case["value_cache"], cache_mode="PA_NZ")
    assert {index.device.type for index in shared.indexes} == {"cpu"}
    plan(**(case | {"slot_mapping": shared})).run()
    with torch.device("cpu"):
        table, positions = ints([3, 1], [0, 2]), ints(5, 2)
    assert slots_from_block_table(table, positions, 4).tolist() == [5, 2]
