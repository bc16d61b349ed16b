"""What a kernel does with the tensors of a launch, row by row in Python: the tests' own reading of the kernels."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from scatter_pa_kv_cache.gather_plan import GatherPlan
from scatter_pa_kv_cache.golden.mean import mean
from scatter_pa_kv_cache.golden.slots import bits
from scatter_pa_kv_cache.plans import KernelPlan
from scatter_pa_kv_cache.task_plan import TaskPlan
from scatter_pa_kv_cache.token_plan import TokenPlan


def emulate(plan: KernelPlan) -> None:
    """Write into the caches as the plan's kernel does on a device: negative rows are skipped, no bound is checked."""
    if isinstance(plan, TokenPlan):
        _tokens(plan)
    else:
        assert isinstance(plan, TaskPlan)
        _tasks(plan)


def _tokens(plan: TokenPlan) -> None:
    tensors, count = plan.tensors(), len(plan.sides)
    parameters = dict(plan.kernel.arguments)
    for number in range(count):
        side = parameters[("key_side", "value_side")[number]]
        source, rows = tensors[number], tensors[number - count]
        index = tensors[count if parameters.get("one_index") else count + number]
        assert index.shape == (1, len(index[0]))
        assert str(index.dtype) == f"torch.{parameters['index_dtype']}"
        assert len(index[0]) % side.groups == 0
        for at, row in enumerate(index[0].tolist()):
            if row >= 0:
                _write(rows, row, source[at, side.column : side.column + side.row])


def _tasks(plan: TaskPlan) -> None:
    parameters = dict(plan.kernel.arguments)
    names = ["slot_mapping", "compress_lens", "compress_seq_offset", "seq_lens", "seq_starts"]
    if plan.choice.module == "alibi":
        names.remove("compress_seq_offset")
    tensors = list(plan.tensors())
    scalars = {name: tensors.pop(0) for name in names}
    assert all(tensor.dtype == torch.int32 and tensor.dim() == 1 for tensor in scalars.values())
    if "mean_dtype" in parameters:
        tensors.pop(0)
    numbers = {name: tensor.tolist() for name, tensor in scalars.items()}
    for at, name in enumerate(("key_side", "value_side")):
        side = parameters[name]
        source, slot_rows, rows = tensors[at], tensors[2 + at], tensors[-2 + at]
        heads = parameters["heads"]
        for task in range(len(numbers["slot_mapping"])):
            for tokens, slot in _runs(plan.choice.scatter_mode, numbers, task, heads):
                for group in range(side.groups):
                    column = side.column + (task % heads * side.groups + group) * side.row
                    part = source[tokens.start : tokens.stop, column : column + side.row]
                    row = int(slot_rows[group, slot])
                    if row >= 0:
                        unsigned = part.view(getattr(torch, f"u{side.dtype}")) if side.wraps else part
                        _write(rows, row, mean(unsigned).view(rows.dtype) if len(part) > 1 else part[0])


def _runs(mode: str, numbers: dict[str, list[int]], task: int, heads: int) -> Iterator[tuple[range, int]]:
    """The tokens of a task that make one row, and its slot."""
    sequence = task // heads
    slot, window, length = numbers["slot_mapping"][task], numbers["compress_lens"][task], numbers["seq_lens"][sequence]
    start = numbers["seq_starts"][sequence]
    if slot < 0:
        return
    if mode == "Alibi":
        kept = min(window, length)
        for number in range(kept):
            token = start + length - kept + number
            yield range(token, token + 1), slot + window - kept + number
        return
    offset = numbers["compress_seq_offset"][task]
    if offset in (-1, length) or window == 0:
        offset, window = length, 0
    for token in (*range(offset), *range(offset + window, length)):
        back = 0 if token < offset else window - (mode == "Rope")
        yield range(start + token, start + token + 1), slot + token - back
    if mode == "Rope" and window:
        yield range(start + offset, start + offset + window), slot + offset


def emulate_gather(plan: GatherPlan) -> None:
    """Write into the results as the gather kernel does on a device."""
    given = plan.tensors(plan.sequences(), [side.rows for side in plan.sides], [side.out for side in plan.sides])
    table, first_blocks, lengths, starts = (tensor.tolist() for tensor in given[:4])
    for sequence, length in enumerate(lengths):
        for token in range(length):
            column = min(first_blocks[sequence] + token // plan.block_size, len(table[sequence]) - 1)
            block, place = table[sequence][column], token % plan.block_size
            for rows, out, pages in zip(given[6:8], given[8:], [side.pages for side in plan.sides], strict=True):
                for number in range(pages.pieces):
                    at = pages.out_column + number * pages.piece
                    written = bits(out)[starts[sequence] + token, at : at + pages.piece]
                    if block < 0:
                        written.zero_()
                        continue
                    row = block * pages.block_rows + place + number * pages.piece_rows
                    at = pages.column + number * pages.piece_columns
                    written.copy_(bits(rows)[row, at : at + pages.piece])


def _write(rows: torch.Tensor, row: int, numbers: torch.Tensor) -> None:
    bits(rows)[row] = bits(numbers)
