"""Random calls of every scenario in sim: all memory of the caches equals golden's, gaps and neighbours included.

The default run has 220 calls, the slow one 2,090 others. The number in a test's name is its seed too, and a failing
call is printed with the line that reproduces it.
"""

import _checkout  # noqa: F401
import pytest
from hypothesis import HealthCheck, given, seed, settings
from sim_cases import Case, memory, task_calls, token_calls, twin

from scatter_pa_kv_cache.api import plan
from scatter_pa_kv_cache.means import mean_bounds
from scatter_pa_kv_cache.plans import KernelPlan
from scatter_pa_kv_cache.reference import reference
from scatter_pa_kv_cache.task_plan import TaskPlan

CALLS = [20, pytest.param(190, marks=pytest.mark.slow)]  # of each kind


def examples(number: int) -> settings:
    return settings(
        max_examples=number,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def check(case: Case) -> None:
    expected = twin(case)
    wanted = plan(**expected)
    plan(**case).run()
    assert isinstance(wanted, KernelPlan)
    items = wanted.items()
    reference(wanted, items.numbers, items.slots, [side.cache for side in wanted.sides])
    if isinstance(wanted, TaskPlan):
        _accept_near_means(wanted, case, expected)
    for name in {"key_cache", "value_cache"} & case.keys():
        differs = memory(case[name]) != memory(expected[name])
        assert not differs.any(), f"{int(differs.sum())} bytes of {name} differ from golden"


def _accept_near_means(wanted: TaskPlan, case: Case, expected: Case) -> None:
    """Means of floats may be as far from golden as their bound says: take over those that are."""
    items = wanted.items()
    covers = [side.layout.cover(side.cache) for side in wanted.sides]
    bounds = mean_bounds(wanted, items.numbers, items.slots, covers)
    for name, bound in zip(("key_cache", "value_cache"), bounds or (), strict=False):
        got, want = case[name], expected[name]
        allowed = bound.view(-1).as_strided(want.shape, want.stride())
        near = (allowed > 0) & ((got.float() - want.float()).abs() <= allowed)
        want[near] = got[near]


@pytest.mark.parametrize("number", CALLS)
@pytest.mark.parametrize("kind", ["norm", "nct", "pa_nz", "nhsd", "key_only"])
def test_token_calls(kind: str, number: int) -> None:
    @seed(number)
    @examples(number)
    @given(token_calls(kind))
    def run(case: Case) -> None:
        check(case)

    run()


@pytest.mark.filterwarnings("ignore::scatter_pa_kv_cache.ScatterPaKvCacheWarning")
@pytest.mark.parametrize("number", CALLS)
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("mode", ["Rope", "Omni", "Alibi"])
def test_task_calls(mode: str, rank: int, number: int) -> None:
    @seed(number)
    @examples(number)
    @given(task_calls(mode, rank))
    def run(case: Case) -> None:
        check(case)

    run()
