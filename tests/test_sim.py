"""Sim's gates, and its memory: what is wrong is refused by name, and the caches keep their bits."""

import dataclasses

import _checkout  # noqa: F401
import pytest
import torch
from wrong_kernels import ROW

from scatter_pa_kv_cache import SimulationError, gate, scatter_pa_kv_cache, sim
from scatter_pa_kv_cache.blocks import bits
from scatter_pa_kv_cache.gate import launch
from scatter_pa_kv_cache.runtime import Kernel
from scatter_pa_kv_cache.sim_process import WORKER


def case(tokens=10, rows=24, dtype=torch.bfloat16):
    """Tensors of wrong_kernels' kernels, and golden."""
    random = torch.Generator().manual_seed(0)
    source, cache = (torch.randn(size, ROW, generator=random).to(dtype) for size in (tokens, rows))
    if dtype == torch.int32:
        source = torch.full((tokens, ROW), 2**30, dtype=dtype)
    index = torch.randperm(rows, generator=random)[:tokens].int()
    golden = cache.clone()
    golden[index.long()] = source
    return (source, index[None], cache[:, None, None], cache), {3: golden}


def run(name, stage, tensors, goldens, results=None, **arguments):
    factory = f"{name}_kernel" if ":" in name else f"wrong_kernels:{name}_kernel"
    before = [tensor.clone() for tensor in tensors]
    try:
        return launch(Kernel(factory, tuple(arguments.items())), stage, tensors, goldens, results=results)
    finally:
        assert all(torch.equal(bits(now), bits(then)) for now, then in zip(tensors, before, strict=True))


@pytest.mark.parametrize("stage", ["values", "verdicts"])
def test_a_right_kernel_passes(stage):
    tensors, goldens = case()
    results = 3 if stage == "verdicts" else None
    (result,) = run("scatter", stage, tensors, goldens, results).values()
    assert torch.equal(bits(result), bits(goldens[3]))


@pytest.mark.parametrize("stage", ["values", "verdicts"])
@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("off_by_one", {"dtype": "bfloat16"}, "tensor_graph is FAILED for output3"),
        ("lost_tail", {}, "tensor_graph is FAILED for output3"),
        ("hazard_kernels:unrolled", {"row": ROW, "tile": 4, "unroll": (2, 1)}, "tensor_graph is FAILED"),
    ],
    ids=["other values", "lost tail", "unrolled by two"],
)
def test_a_wrong_kernel_is_named(name, arguments, words, stage):
    with pytest.raises(SimulationError, match=words) as caught:
        run(name, stage, *case(), **arguments)
    assert f"kernel {name.rpartition(':')[2]}_kernel" in str(caught.value)
    run("scatter", stage, *case())


@pytest.mark.parametrize("stage", ["values", pytest.param("verdicts", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["overlong_tail", "hazard_kernels:unrolled"])
def test_a_tail_that_reads_too_far(name, stage):
    arguments = {"row": ROW, "tile": 4, "unroll": (4,)} if "unrolled" in name else {}
    with pytest.raises(SimulationError, match=r"(overlong_tail|unrolled)_kernel[^$]*VIEWOpError"):
        run(name, stage, *case(), **arguments)
    run("scatter", stage, *case())


def test_four_whole_tiles_unrolled_lose_writes():
    with pytest.raises(SimulationError, match="unrolled_kernel: tensor_graph is FAILED"):
        run("hazard_kernels:unrolled", "values", *case(tokens=16), row=ROW, tile=4, unroll=(4,))


def test_a_kernel_that_a_later_pass_breaks():
    run("small_vec_tile", "values", *case())
    with pytest.raises(SimulationError, match=r"small_vec_tile_kernel: Pass_\d+_\w+ is FAILED for output"):
        run("small_vec_tile", "verdicts", *case())
    run("scatter", "verdicts", *case())


def test_another_number_of_results():
    with pytest.raises(SimulationError, match=r"scatter_kernel: Pass_\d+_\w+ compared 3 results, 4 were expected"):
        run("scatter", "verdicts", *case(), results=4)


def test_another_number_of_passes(monkeypatch):
    monkeypatch.setattr(gate, "PASSES", 37)
    with pytest.raises(SimulationError, match="scatter_kernel: 36 passes and 1 outputs were compared, 37 and 1"):
        run("scatter", "verdicts", *case())


def test_a_golden_of_another_size():
    tensors, goldens = case()
    with pytest.raises(SimulationError, match="scatter_kernel"):
        run("scatter", "values", tensors, {3: goldens[3][:-1].clone()})
    run("scatter", "values", *case())


@pytest.mark.parametrize("at", [0, 7, -1])
def test_one_ulp_is_caught(at):
    """By the row of the tensor graph, and also by the bits where that row is left aside."""
    tensors, goldens = case()
    bits(goldens[3]).view(-1)[at] ^= 1
    with pytest.raises(SimulationError, match="scatter_kernel: tensor_graph is FAILED for output3"):
        run("scatter", "values", tensors, goldens)


@pytest.mark.parametrize("off", [1, -1])
def test_one_in_a_big_integer_is_caught(off):
    tensors, goldens = case(dtype=torch.int32)
    run("scatter", "values", tensors, goldens, dtype="int32")
    goldens[3][tensors[1][0, 0].long(), 0] += off
    with pytest.raises(SimulationError, match="scatter_kernel: tensor_graph is FAILED for output3"):
        run("scatter", "values", tensors, goldens, dtype="int32")


def test_a_kernel_off_by_one_in_big_integers_is_caught():
    with pytest.raises(SimulationError, match="off_by_one_kernel: tensor_graph is FAILED for output3"):
        run("off_by_one", "values", *case(dtype=torch.int32), dtype="int32")


def test_bits_that_compare_equal_are_still_compared():
    """-0.0 and 0.0 are equal numbers: PyPTO's row may pass, the bits do not."""
    tensors, goldens = case()
    tensors[0].zero_()
    goldens[3][tensors[1][0].long()] = -0.0
    with pytest.raises(SimulationError, match="scatter_kernel"):
        run("scatter", "values", tensors, goldens)


def test_not_a_number_passes_with_its_payload():
    tensors, goldens = case()
    bits(tensors[0]).copy_(torch.arange(10 * ROW).view(10, ROW) - 0x40)  # 0xffc0.. are NaNs, 0x0000.. denormals
    bits(goldens[3])[tensors[1][0].long()] = bits(tensors[0])
    (result,) = run("scatter", "values", tensors, goldens).values()
    assert torch.equal(bits(result), bits(goldens[3]))


# A whole call


def arguments(tokens, blocks=8, block_size=16, heads=2, size=64):
    random = torch.Generator().manual_seed(1)
    key, value = (torch.randn(tokens, heads, size, generator=random).bfloat16() for _ in range(2))
    caches = [torch.randn(blocks, block_size, heads, size, generator=random).bfloat16() for _ in range(2)]
    slots = torch.randperm(blocks * block_size, generator=random)[:tokens].int()
    return key, caches[0], slots, value, caches[1]


def expected(key, key_cache, slots, value, value_cache):
    caches = key_cache.clone(), value_cache.clone()
    for cache, source in zip(caches, (key, value), strict=True):
        cache.flatten(0, 1)[slots.long()] = source
    return caches


@pytest.fixture
def launches(monkeypatch):
    """The launches of values that sim makes: how many tokens each had."""
    made = []

    def recorded(launched):
        if launched.stage == "values":
            made.append(launched.tensors[0].shape[0])
        return run_launch(launched)

    run_launch = WORKER.run
    monkeypatch.setattr(WORKER, "run", recorded)
    return made


def swapped(launched):
    """As if the kernel took value for key."""
    key, value, *others = launched.tensors
    return dataclasses.replace(launched, tensors=(value, key, *others))


def failing(launched):
    return dataclasses.replace(launched, kernel=Kernel("wrong_kernels:unparsable_kernel", ()))


@pytest.mark.parametrize(("spoil", "stage"), [(swapped, "verdicts"), (swapped, "values"), (failing, "values")])
def test_a_call_that_goes_wrong_changes_nothing(monkeypatch, spoil, stage):
    call = arguments(5)
    before = [tensor.clone() for tensor in call]
    honest = WORKER.run
    monkeypatch.setattr(sim, "_verified", set())
    monkeypatch.setattr(
        WORKER, "run", lambda launched: honest(spoil(launched) if launched.stage == stage else launched)
    )
    with pytest.raises(SimulationError, match=r"norm_kernel|unparsable_kernel"):
        scatter_pa_kv_cache(*call)
    assert all(torch.equal(now, then) for now, then in zip(call, before, strict=True))
    monkeypatch.undo()
    wanted = expected(*call)
    scatter_pa_kv_cache(*call)
    assert torch.equal(call[1], wanted[0])
    assert torch.equal(call[4], wanted[1])


def test_a_failure_in_the_last_launch_changes_nothing(monkeypatch):
    """The parts before it were right, and are not written either."""
    call = arguments(100)
    before = [tensor.clone() for tensor in call]
    computed, done = sim._compute, []

    def failing(*given):
        if len(done) == 1:
            raise SimulationError("the second part")
        done.append(computed(*given))
        return done[-1]

    monkeypatch.setenv(sim.MEMORY_VARIABLE, "0.002")
    monkeypatch.setattr(sim, "_compute", failing)
    with pytest.raises(SimulationError, match="the second part"):
        scatter_pa_kv_cache(*call)
    assert len(done) == 1
    assert all(torch.equal(now, then) for now, then in zip(call, before, strict=True))


def test_less_memory_makes_more_launches_and_the_same_result(monkeypatch, launches):
    results, counts = [], []
    for gibibytes in (None, "0.002", "0.0009"):
        if gibibytes:
            monkeypatch.setenv(sim.MEMORY_VARIABLE, gibibytes)
        call = arguments(100)
        wanted = expected(*call)
        launches.clear()
        scatter_pa_kv_cache(*call)
        assert torch.equal(call[1], wanted[0])
        assert torch.equal(call[4], wanted[1])
        assert sum(launches) == 100
        results.append(call)
        counts.append(len(launches))
    assert counts[0] < counts[1] < counts[2]


@pytest.mark.parametrize("gibibytes", ["0.0000001", "0.001"])
def test_too_little_memory_is_refused_with_the_estimate(monkeypatch, gibibytes):
    monkeypatch.setenv(sim.MEMORY_VARIABLE, gibibytes)
    call = arguments(5, blocks=64, block_size=128, size=256)
    before = [tensor.clone() for tensor in call]
    with pytest.raises(SimulationError, match=r"need about [0-9.e-]+ GiB .*SCATTER_PA_KV_CACHE_SIM_MEMORY") as caught:
        scatter_pa_kv_cache(*call)
    assert float(str(caught.value).split("about ")[1].split()[0]) > float(gibibytes)
    assert all(torch.equal(now, then) for now, then in zip(call, before, strict=True))


@pytest.mark.parametrize("text", ["much", "", "4 GiB", "nan", "inf", "0", "-1"])
def test_a_budget_that_is_no_number(monkeypatch, text):
    monkeypatch.setenv(sim.MEMORY_VARIABLE, text)
    with pytest.raises(SimulationError, match=r"SCATTER_PA_KV_CACHE_SIM_MEMORY is .*must be a number of GiB"):
        scatter_pa_kv_cache(*arguments(5))


def test_the_default_budget_is_half_of_the_machine(monkeypatch):
    monkeypatch.delenv(sim.MEMORY_VARIABLE, raising=False)
    with open("/proc/meminfo") as file:
        total = int(file.readline().split()[1]) * 1024
    assert abs(sim.memory_budget() - total / 2) < total / 100
    monkeypatch.setenv(sim.MEMORY_VARIABLE, "1.5")
    assert sim.memory_budget() == 3 * 2**29
