"""The compressor's state: golden by literal examples, and the kernel in sim on them and at random."""

import json
import subprocess
import sys
from dataclasses import replace

import _checkout
import pytest
import torch
from fused_runs import configs, named, run_and_show

from scatter_pa_kv_cache.errors import SimulationError
from scatter_pa_kv_cache.fused import launches
from scatter_pa_kv_cache.gate import launch
from scatter_pa_kv_cache.golden.compressor_state import completed, update
from scatter_pa_kv_cache.golden.stages import rotate_pairs
from scatter_pa_kv_cache.runtime import Kernel


@pytest.mark.parametrize("config", configs("compressor_state"))
def test_sim(config):
    run_and_show(config)


def column(*numbers):
    """Rows of one element, fp32."""
    return torch.tensor(numbers).float()[..., None]


def overshoot_example():
    """Rows of one element: both sequences, of which the first goes on into its next block."""
    kv, score = column([10, 11], [20, 21]), torch.zeros(2, 2, 1)
    table, start = torch.tensor([[2, 0], [1, 1]]), torch.tensor([3, 1])
    return [kv, score, column(0.1, 0.2, 0.3, 0.4), table, start, torch.zeros(3, 4, 1), torch.zeros(3, 4, 1)]


def test_rows_and_their_overshoot():
    *given, kv_state, score_state = overshoot_example()
    windows = update(*given, kv_state, score_state)
    assert kv_state[..., 0].tolist() == [[11, 0, 0, 0], [0, 20, 21, 0], [0, 0, 0, 10]]
    assert torch.equal(score_state[..., 0], torch.tensor([[0.1, 0, 0, 0], [0, 0.2, 0.3, 0], [0, 0, 0, 0.4]]))
    assert windows.done.tolist() == [True, False]
    assert windows.window_kv[..., 0].tolist() == [[0, 0, 0, 10], [0, 20, 21, 0]]


@pytest.mark.parametrize(
    ("start", "window", "slots"), [(6, [12, 13, 101, 102], [14, 15, 0]), (2, [8, 9, 101, 102], [10, 11, 12])]
)
def test_the_next_window_may_lie_in_the_same_block(start, window, slots):
    state = torch.arange(16.0).view(2, 8, 1)
    new = column([101, 102, 103])
    zeros = torch.zeros(2, 8, 1)
    windows = update(new, 0 * new, torch.zeros(4, 1), torch.tensor([[1, 0]]), torch.tensor([start]), state, zeros)
    assert windows.window_kv.flatten().tolist() == window
    expected = torch.arange(16.0)
    expected[slots] = torch.tensor([101.0, 102, 103])
    assert torch.equal(state.flatten(), expected)


def test_the_overshoot_example_in_sim():
    """The literal example with 16 equal columns through the kernel."""
    kv, score, ape, table, start, *states = overshoot_example()
    config = replace(
        named("compressor_overshoot"), starts=(3, 1), together=2, tokens=4, block_size=4, width=16, name="literal"
    )
    (step,) = launches(config)

    def wide(rows):
        return rows.reshape(-1, 1).repeat(1, 16)

    golden = [state.clone() for state in states]
    windows = update(kv, score, ape, table, start, *golden)
    tensors = list(step.tensors)
    tensors[:6] = [wide(kv), wide(score), wide(ape), step.tensors[3], table.int(), start.int()]
    tensors[10:14] = [*map(wide, states)] * 2
    goldens = {12: wide(golden[0]), 13: wide(golden[1]), 14: wide(windows.window_kv), 15: wide(windows.window_score)}
    launch(step.kernel, "verdicts", tensors, goldens)


def test_pairs_stay_where_they_are():
    rows, cos, sin = (torch.tensor([row]).bfloat16() for row in ([1.0, 2, 3, 4], [0.5, 0.5, 0, 0], [0.5, 0.5, 1, 1]))
    assert rotate_pairs(rows, cos, sin).tolist() == [[-0.5, 1.5, -4, 3]]


@pytest.mark.parametrize("config", configs("compressor_state"))
def test_a_complete_window_is_the_state_after_the_update(config):
    (step,) = launches(config)
    outputs = {output.name: output.golden for output in step.outputs.values()}
    table, ratio, size = step.tensors[4], config.ratio, config.block_size
    for number, start in enumerate(config.starts):
        first = start - start % ratio
        if start % ratio + config.together >= ratio:
            row = int(table[number, first // size]) * size + first % size
            for name in ("kv", "score"):
                window = outputs[f"window_{name}"][number * ratio : (number + 1) * ratio]
                assert torch.equal(outputs[f"{name}_state"][row : row + ratio], window)


def test_reduction_is_near_fp64_and_counts_the_window_before():
    random = torch.Generator().manual_seed(0)
    states = [torch.randn(2, 8, 8, generator=random) for _ in range(2)]
    new = torch.randn(2, 1, 1, 8, generator=random).repeat(1, 2, 1, 1)
    table, start = torch.tensor([[0], [1]]), torch.tensor([7, 3])
    before = [state.clone() for state in states]
    windows = update(*new, torch.zeros(4, 8), table, start, *states)
    flat = torch.ones(2, 4).bfloat16()
    pooled, _ = completed(windows, torch.ones(4), flat, flat, table, start, *before, overlap=True)
    kv, score = (state[0].double() for state in states)
    kv, score = (torch.cat([rows[:4, :4], rows[4:, 4:]]) for rows in (kv, score))
    assert torch.allclose(pooled[0].double(), (kv * torch.softmax(score, 0)).sum(0), atol=1e-6)
    kv, score = (state[1, :4, 4:].double() for state in states)
    assert torch.allclose(pooled[1].double(), (kv * torch.softmax(score, 0)).sum(0), atol=1e-6)


def window_call():
    random = torch.Generator().manual_seed(0)
    new, state = torch.randn(6, 64, generator=random), torch.randn(16, 64, generator=random)
    golden = torch.cat([state[4:8], state[8:12]])
    golden[2:4], golden[5:8] = new[:2], new[3:]
    start = torch.tensor([6, 9], dtype=torch.int32)
    return (new, torch.arange(4, dtype=torch.int32)[None], start, state, torch.zeros(8, 64)), {4: golden}


def test_a_window_that_is_moved_as_it_is_lands_elsewhere():
    """The values are right; passes show that the scatter was made to write into the window's destination."""
    launch(Kernel("fused_traps:window_kernel", (("scale", True),)), "verdicts", *window_call())
    folded = Kernel("fused_traps:window_kernel", (("scale", False),))
    launch(folded, "values", *window_call())
    with pytest.raises(SimulationError, match=r"window_kernel: Pass_\d+_\w+ is FAILED"):
        launch(folded, "verdicts", *window_call())


def test_windows_are_scattered_in_memory_of_their_own(tmp_path):
    """A scatter into a view of the state would be right in sim, and write into the state's first rows on a device."""
    program = _checkout.ROOT / "tests" / "scatter_targets.py"
    subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, check=True)
    targets = json.loads((tmp_path / "targets.json").read_text())
    assert targets
    assert set(targets) == {None}


@pytest.mark.parametrize("tokens", [5, 8])
def test_a_tail_cannot_be_reshaped_to_pairs(tokens):
    """Values are right; later passes lose the valid shape of a tail, and their results are missing."""
    source = torch.arange(tokens * 128.0).view(tokens, 128)
    golden = torch.cat([source[:, 64::2], source[:, 65::2]], 1)
    call = (source, torch.zeros(tokens, 64)), {1: golden}
    kernel = Kernel("fused_traps:reshaped_tail_kernel", ())
    launch(kernel, "values", *call)
    if tokens == 8:
        launch(kernel, "verdicts", *call)
        return
    with pytest.raises(SimulationError, match=r"reshaped_tail_kernel: \d+ passes and 1 outputs were compared, 36 and"):
        launch(kernel, "verdicts", *call)
