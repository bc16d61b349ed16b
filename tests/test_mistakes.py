"""A kernel author's mistakes: which verdict of sim shows each of them, and the one that only the cost model shows."""

from dataclasses import replace

import _checkout  # noqa: F401
import pytest
import torch

pytest.importorskip("pypto")

from scatter_pa_kv_cache import SimulationError, plan
from scatter_pa_kv_cache.benchmarks.cost_model import Example, measure
from scatter_pa_kv_cache.gate import launch
from scatter_pa_kv_cache.golden import rope
from scatter_pa_kv_cache.golden.norm import scatter
from scatter_pa_kv_cache.runtime import Kernel

ROW, TILE, BLOCKS, BLOCK_SIZE = 32, 8, 4, 16
CACHE, CACHE_ROWS = 2, 3  # numbers of the parameters
TILES_AND_TAIL, TILES = 2 * TILE + 3, 4 * TILE


def run(
    kernel: str,
    stage: str,
    tokens: int = TILES_AND_TAIL,
    output: int = CACHE_ROWS,
    blocks: int = BLOCKS,
    **arguments: object,
) -> None:
    """Scatter random rows by the kernel and compare ``output`` with golden, gated as the package's own kernels are."""
    random = torch.Generator().manual_seed(0)
    source = torch.randn(tokens, 1, ROW, generator=random).bfloat16()
    cache = torch.randn(blocks, BLOCK_SIZE, 1, ROW, generator=random).bfloat16()
    slots = torch.randperm(blocks * BLOCK_SIZE, generator=random)[:tokens].int()
    golden = cache.clone()
    scatter(source, golden, slots)
    tensors = (source[:, 0], slots[None], cache, cache.view(-1, ROW))
    wanted = golden if output == CACHE else golden.view(-1, ROW)
    launch(Kernel(f"mistakes:{kernel}", tuple(arguments.items())), stage, tensors, {output: wanted})


def refused(words: str, kernel: str, stage: str, **arguments: object) -> None:
    with pytest.raises(SimulationError, match=words):
        run(kernel, stage, **arguments)


@pytest.mark.parametrize("tokens", [TILES_AND_TAIL, TILES])
def test_the_right_kernel_is_right(tokens):
    run("right_kernel", "verdicts", tokens)


@pytest.mark.parametrize("tokens", [TILES_AND_TAIL, TILES])
@pytest.mark.parametrize("unroll", [(2, 1), (4,)])
def test_unrolling_loses_every_move_but_the_last(unroll, tokens):
    """Wrong values; where the list cannot split the trip count, the iterations past the end stop the interpreter."""
    words = "VIEWOpError" if unroll == (4,) and tokens == TILES_AND_TAIL else "tensor_graph is FAILED"
    refused(words, "right_kernel", "verdicts", tokens=tokens, unroll=unroll)


def test_a_vec_tile_smaller_than_the_view_breaks_passes():
    """The values of the tensor graph are right: only the verdicts of the passes show it."""
    run("right_kernel", "values", vec_rows=TILE // 2)
    refused(r"Pass_\d+_\w+ is FAILED", "right_kernel", "verdicts", vec_rows=TILE // 2)


def test_a_vec_tile_larger_than_the_view_is_no_mistake():
    run("right_kernel", "verdicts", vec_rows=2 * TILE)


def test_without_valid_shape_the_tail_reads_past_the_end():
    """Token counts that are whole tiles do not show it."""
    run("right_kernel", "verdicts", tokens=TILES, whole=True)
    refused("VIEWOpError", "right_kernel", "verdicts", whole=True)


def test_a_truncated_index_names_other_rows():
    """Caches of fewer than 32,768 rows do not show it."""
    run("right_kernel", "verdicts", narrow=True)
    refused("tensor_graph is FAILED", "right_kernel", "values", blocks=2**16 // BLOCK_SIZE, narrow=True)


def test_moving_into_a_cache_reshaped_before_the_loop_writes_nothing():
    for output in (CACHE, CACHE_ROWS):
        refused("tensor_graph is FAILED", "written_back_kernel", "verdicts", output=output, inside=False)


def test_moving_into_a_cache_reshaped_in_the_loop_compiles_to_nothing():
    """The values of the tensor graph are right at times; no pass is compared, and the compiled program has no task."""
    words = "0 passes and 1 outputs were compared|tensor_graph is FAILED"
    refused(words, "written_back_kernel", "verdicts", output=CACHE, inside=True)
    assert cost("written_back_kernel", inside=True).graph.tasks == 0


@pytest.mark.parametrize(
    ("form", "output"), [("2-D into 4-D", CACHE), ("4-D into 2-D", CACHE_ROWS), ("reshaped", CACHE_ROWS)]
)
def test_a_result_of_another_rank_stops_the_interpreter(form, output):
    refused("ASSEMBLEOpError", "rank_kernel", "values", output=output, form=form)


def window_of_96(dtype: torch.dtype):
    """A Rope plan of one sequence whose window is most of it, and its caches."""
    random = torch.Generator().manual_seed(0)
    key, value = (torch.rand(100, 1, 16, generator=random).to(dtype) for _ in range(2))
    caches = [torch.zeros(7, 16, 1, 16, dtype=dtype) for _ in range(2)]
    tasks = {"slot_mapping": [3], "compress_lens": [96], "compress_seq_offset": [2], "seq_lens": [100]}
    index = {name: torch.tensor(number, dtype=torch.int32) for name, number in tasks.items()}
    return plan(key, caches[0], value=value, value_cache=caches[1], scatter_mode="Rope", **index), caches


@pytest.mark.parametrize(
    ("dtype", "half", "words"),
    [
        (torch.bfloat16, "bfloat16", r"Pass_\d+_AutoCast is FAILED"),
        (torch.float16, "float16", r"leaves \d+ wrong elements"),
        (torch.float32, "float16", r"leaves \d+ wrong elements"),
    ],
    ids=["bfloat16", "float16", "float32 in float16"],
)
def test_a_mean_in_half_precision_is_not_a_mean_in_another_order(dtype, half, words):
    right, caches = window_of_96(dtype)
    narrowed = tuple((dict(right.kernel.arguments) | {"mean_dtype": half}).items())
    with pytest.raises(SimulationError, match=f"rope_kernel:? {words}"):
        replace(right, kernel=Kernel(right.kernel.factory, narrowed)).run()
    assert not any(cache.any() for cache in caches)
    right.run()
    assert all(cache.any() for cache in caches)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_golden_whose_mean_is_in_half_precision(dtype, monkeypatch):
    def half(rows: torch.Tensor, dtype: str | None) -> torch.Tensor:
        total = torch.zeros_like(rows[0])
        for row in rows:
            total = total + row
        return total / len(rows)

    right, caches = window_of_96(dtype)
    monkeypatch.setattr(rope, "mean", half)
    with pytest.raises(SimulationError, match="rope_kernel"):
        right.run()
    assert not any(cache.any() for cache in caches)


def test_a_reshape_before_the_loop_is_exact_and_every_iteration_waits_for_it():
    run("reshaped_before_kernel", "verdicts")
    right, early = cost("right_kernel"), cost("reshaped_before_kernel")
    assert (right.graph.tasks, right.graph.scatters, right.graph.edges) == (5, 5, 0)
    assert (early.graph.scatters, early.graph.edges) == (5, 5)
    assert early.e2e_us > 1.5 * right.e2e_us
    assert early.e2e_with_prologue_us > 2 * right.e2e_with_prologue_us


def cost(kernel: str, **arguments: object):
    """The kernel in PyPTO's cost model, on five tiles."""
    source, index = Example((5 * TILE, ROW), "bfloat16"), Example((1, 5 * TILE), "int32", "arange")
    cache = Example((BLOCKS, BLOCK_SIZE, 1, ROW), "bfloat16")
    rows = Example((BLOCKS * BLOCK_SIZE, ROW), "bfloat16", memory_of=CACHE)
    return measure(Kernel(f"mistakes:{kernel}", tuple(arguments.items())), (source, index, cache, rows))
