"""What sim can say of a Rope mean: which it cannot compute, and how far from golden one may be."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .task_plan import TaskPlan

# relative spacing of the floats that a mean is rounded to
_SPACING = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}
_LONGEST_EXACT_WINDOW = 256  # of 16-bit integers: a longer sum may pass 2**24, where fp32 skips integers
_UNKNOWN = ("float8_e4m3fn", "float8_e5m2", "hifloat8", "int32", "uint32")


def refusal(plan: TaskPlan) -> str | None:
    """Why the interpreter cannot average this call's windows, or None."""
    dtype, longest = plan.arguments.key_dtype, int(plan.windows().max())
    if dtype in _UNKNOWN:
        return (
            f"sim cannot compute the mean of {dtype}, which PyPTO's interpreter corrupts or aborts on: use the golden "
            "reference for its values, or an NPU"
        )
    if dtype in ("int16", "uint16") and longest > _LONGEST_EXACT_WINDOW:
        return (
            f"compress_lens asks for the mean of {longest} tokens of {dtype}: sums are exact in fp32 up to "
            f"{_LONGEST_EXACT_WINDOW} tokens, so in sim it must be at most that"
        )
    return None


def mean_bounds(
    plan: TaskPlan, numbers: torch.Tensor, slots: torch.Tensor, covers: Sequence[torch.Tensor]
) -> list[torch.Tensor] | None:
    """How far each element of the covers may be from golden: 0 but in the means of floats. None where all is exact.

    The kernel adds the rows of a tile in another order than golden, so two fp32 sums differ by at most
    2 * n * 2**-24 * sum(abs); what is rounded to 16 bits may then fall to either neighbour.
    """
    spacing = _SPACING.get(plan.arguments.key_dtype)
    if plan.choice.scatter_mode != "Rope" or spacing is None:
        return None
    windows = plan.windows()
    offsets, firsts = plan.window_starts()
    bounds = [torch.zeros(cover.shape) for cover in covers]
    for number, slot in zip(numbers.tolist(), slots.tolist(), strict=True):
        window, first = int(windows[number]), int(firsts[number])
        if not window:
            continue
        for name, side, bound in zip(("key", "value"), plan.sides, bounds, strict=True):
            tokens = getattr(plan.arguments, name)
            rows = tokens.flatten(0, -3)[first : first + window, number % tokens.shape[-2]].double()
            reach = 2 * 2.0**-24 * rows.abs().sum(0) + spacing * rows.mean(0).abs()
            bound[side.layout.index(torch.tensor([slot + int(offsets[number])]))[0]] = reach.float().view(
                -1, side.side.row
            )
    return bounds
