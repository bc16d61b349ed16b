"""What holds for every call: the order and the batching of tokens do not count, and a refused call writes nothing.

The default run has 200 calls, the slow one 2,000.
"""

from __future__ import annotations

import _checkout  # noqa: F401
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from invalid_calls import Invalid, any_tasks, any_tokens, invalid_calls, on_meta
from sim_cases import Case, memory, twin

from scatter_pa_kv_cache import plan, scatter_pa_kv_cache
from scatter_pa_kv_cache.arguments import normalise
from scatter_pa_kv_cache.describe import describe
from scatter_pa_kv_cache.errors import ScatterPaKvCacheError
from scatter_pa_kv_cache.golden.slots import bits
from scatter_pa_kv_cache.rules import choose

CALLS = {"tokens": 16, "tasks": 6, "refused": 178}


def calls(kind: str) -> list:
    return [CALLS[kind], pytest.param(10 * CALLS[kind], marks=pytest.mark.slow)]


def examples(number: int) -> settings:
    return settings(
        max_examples=number,
        derandomize=True,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


def pick(tensor: torch.Tensor, order: list[int]) -> torch.Tensor:
    return bits(tensor)[order].view(tensor.dtype)


def tokens_of(case: Case, order: list[int]) -> Case:
    """The call of some tokens of a call, in that order."""
    some = case | {"slot_mapping": case["slot_mapping"][order]}
    strides, offsets = [], []
    for place, name in enumerate(name for name in ("key", "value") if name in case):
        source = case[name]
        if case.get("scatter_mode") == "Nct":
            begin = source.storage_offset() + case["offsets"][place]
            source = source.as_strided(source.shape, (case["strides"][place], source.shape[2], 1), begin)
        some[name] = pick(source, order)
        strides.append(source.shape[1] * source.shape[2])
        offsets.append(0)
    if case.get("scatter_mode") == "Nct":
        some |= {"strides": (*strides, 1)[:2], "offsets": (*offsets, 0)[:2]}
    return some


def sequences_of(case: Case, order: list[int]) -> Case:
    """The call of some sequences of a compressed call, in that order."""
    lengths, heads = case["seq_lens"].tolist(), case["key"].shape[-2]
    some = case | {"seq_lens": case["seq_lens"][order]}
    for name in {"slot_mapping", "compress_lens", "compress_seq_offset"} & case.keys():
        tasks = case[name].view(len(lengths), heads)[order]
        some[name] = tasks if case[name].dim() == 2 else tasks.flatten()
    rows = order
    if case["key"].dim() == 3:
        starts = [sum(lengths[:sequence]) for sequence in range(len(lengths))]
        rows = [starts[sequence] + row for sequence in order for row in range(lengths[sequence])]
    return some | {name: pick(case[name], rows) for name in ("key", "value")}


def caches(case: Case) -> list[torch.Tensor]:
    """A copy of all memory of the caches."""
    return [memory(case[name]).clone() for name in ("key_cache", "value_cache") if name in case]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def check_order(case: Case, some, order: list[int]) -> None:
    """``some`` (of a call, in an order) in any order, one at a time, and twice: the same caches each time."""
    assert describe(on_meta(case))[0].startswith("accepted")
    shuffled, apart = twin(case), twin(case)
    scatter_pa_kv_cache(**case)
    wanted = caches(case)
    scatter_pa_kv_cache(**some(shuffled, order))
    assert same(caches(shuffled), wanted), f"in the order {order}"
    for number in order:
        scatter_pa_kv_cache(**some(apart, [number]))
    assert same(caches(apart), wanted), "one at a time"
    scatter_pa_kv_cache(**case)
    assert same(caches(case), wanted), "twice"


@pytest.mark.parametrize("number", calls("tokens"))
def test_tokens_in_any_order_one_at_a_time_and_twice(number: int) -> None:
    @examples(number)
    @given(any_tokens(), st.randoms(use_true_random=False))
    def run(case: Case, random) -> None:
        order = list(range(len(case["slot_mapping"])))
        random.shuffle(order)
        check_order(case, tokens_of, order)

    run()


@pytest.mark.filterwarnings("ignore::scatter_pa_kv_cache.ScatterPaKvCacheWarning")
@pytest.mark.parametrize("number", calls("tasks"))
def test_sequences_in_any_order_one_at_a_time_and_twice(number: int) -> None:
    @examples(number)
    @given(any_tasks(), st.randoms(use_true_random=False))
    def run(case: Case, random) -> None:
        order = list(range(len(case["seq_lens"])))
        random.shuffle(order)
        check_order(case, sequences_of, order)

    run()


@pytest.mark.parametrize("number", calls("refused"))
def test_refused_calls_change_nothing_and_are_foretold(number: int) -> None:
    @examples(number)
    @given(invalid_calls())
    def run(invalid: Invalid) -> None:
        case = invalid.case
        tensors = [given for given in case.values() if isinstance(given, torch.Tensor)]
        before = [memory(tensor).clone() for tensor in tensors]
        with pytest.raises(ScatterPaKvCacheError) as caught:
            scatter_pa_kv_cache(**case)
        assert same([memory(tensor) for tensor in tensors], before)
        rule = caught.value.rule
        assert rule.startswith("V") == invalid.data, rule
        with pytest.raises(ScatterPaKvCacheError) as planned:
            plan(**case)
        assert planned.value.rule == rule
        check_foretold(on_meta(case), rule)

    run()


def check_foretold(call: Case, rule: str) -> None:
    """A call without memory meets the same rule, unless it takes the data to tell."""
    if rule.startswith("V"):
        assert describe(call)[0].startswith("accepted")
        return
    with pytest.raises(ScatterPaKvCacheError) as told:
        describe(call)
    assert told.value.rule == rule
    if rule == "layout":
        assert choose(normalise(**call).spec) is not None
    else:
        with pytest.raises(ScatterPaKvCacheError) as chosen:
            choose(normalise(**call).spec)
        assert chosen.value.rule == rule
