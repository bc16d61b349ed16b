"""The tensors that a launch on an NPU gets, with padding, packed sources and indexes of their own, lead to golden.

Sim hands a kernel what is left of a call when padding is taken out, so it does not see them.
"""

import _checkout  # noqa: F401
import pytest
import rule_cases
from hypothesis import given
from launches import emulate, emulate_gather
from sim_cases import Case, memory, task_calls, token_calls, twin
from test_gather_random import calls as gathers
from test_properties import examples

from scatter_pa_kv_cache import row_index
from scatter_pa_kv_cache.api import plan
from scatter_pa_kv_cache.gather_plan import make_gather_plan
from scatter_pa_kv_cache.gather_rules import normalise
from scatter_pa_kv_cache.golden.gather import reference as golden
from scatter_pa_kv_cache.golden.slots import bits
from scatter_pa_kv_cache.plans import KernelPlan
from scatter_pa_kv_cache.reference import run_golden

CALLS = [60, pytest.param(600, marks=pytest.mark.slow)]


def check(case: Case, shared: bool = False) -> None:
    expected = twin(case)
    run_golden(expected)
    slots = case["slot_mapping"]
    if shared:
        modes = {name: case[name] for name in ("cache_mode", "scatter_mode") if name in case}
        slots = row_index(slots, case["key_cache"], case.get("value_cache"), **modes)
    planned = plan(**(case | {"slot_mapping": slots}))
    assert isinstance(planned, KernelPlan)
    emulate(planned)
    for name in {"key_cache", "value_cache"} & case.keys():
        assert memory(case[name]).equal(memory(expected[name])), name


@pytest.mark.parametrize("number", CALLS)
@pytest.mark.parametrize("mode", ["Norm", "PA_NZ"])
def test_gathers(mode: str, number: int) -> None:
    @examples(number)
    @given(gathers(mode))
    def run(call) -> None:
        tensors, words = call
        wanted = [out.clone() for out in tensors[4:]]
        golden(*tensors[:4], *wanted, **words)
        given = normalise((*tensors, words["seq_offset"]), mode, words["is_seq_lens_cumsum"], None)
        emulate_gather(make_gather_plan(given))
        assert all(bits(out).equal(bits(want)) for out, want in zip(tensors[4:], wanted, strict=True))

    run()


@pytest.mark.parametrize("slot", [20, 2**31 - 1, 2**31, 2**32, 2**63 - 1])
@pytest.mark.parametrize("base", [rule_cases.alibi, rule_cases.rope, rule_cases.four_d, rule_cases.four_d_alibi])
def test_a_task_outside_the_cache_is_skipped(base, slot: int) -> None:
    """Where data is not checked. Its rows are looked up, and no number must lead the look-up out of its table."""
    case = base()
    index = {name for name in case if name in ("slot_mapping", "compress_lens", "compress_seq_offset", "seq_lens")}
    case |= {name: case[name].long() for name in index if case[name] is not None}
    case["slot_mapping"].view(-1)[0] = -1
    expected = twin(case)
    run_golden(expected)
    case["slot_mapping"].view(-1)[0] = slot
    planned = plan(**case, check_data=False)
    assert isinstance(planned, KernelPlan)
    assert slot >= case["key_cache"].shape[0] * case["key_cache"].shape[1]
    emulate(planned)
    for name in ("key_cache", "value_cache"):
        assert memory(case[name]).equal(memory(expected[name])), name


@pytest.mark.parametrize("number", CALLS)
@pytest.mark.parametrize("shared", [False, True], ids=["slots", "row index"])
@pytest.mark.parametrize("kind", ["norm", "nct", "pa_nz", "nhsd", "key_only"])
def test_token_launches(kind: str, shared: bool, number: int) -> None:
    @examples(number)
    @given(token_calls(kind))
    def run(case: Case) -> None:
        check(case, shared)

    run()


@pytest.mark.filterwarnings("ignore::scatter_pa_kv_cache.ScatterPaKvCacheWarning")
@pytest.mark.parametrize("number", CALLS)
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("mode", ["Rope", "Omni", "Alibi"])
def test_task_launches(mode: str, rank: int, number: int) -> None:
    @examples(number)
    @given(task_calls(mode, rank))
    def run(case: Case) -> None:
        check(case)

    run()
