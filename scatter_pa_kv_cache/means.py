"""What sim can say of a Rope mean: which it cannot compute, and how far from golden one may be."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .task_plan import TaskPlan

_ROUNDED = ("float16", "bfloat16", "float32")  # the floats whose mean the interpreter computes
_LEAST = 2.0**-149  # what 0.0 may differ from -0.0
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
    """How far each element of the covers may be from what golden left there. None where all is exact.

    0 but in those means of floats that the order of adding, which is the kernel's own, can round to another number.
    """
    if plan.choice.scatter_mode != "Rope" or plan.arguments.key_dtype not in _ROUNDED:
        return None
    windows = plan.windows()
    offsets, firsts = plan.window_starts()
    bounds = [torch.zeros(cover.shape, dtype=torch.float32) for cover in covers]
    for number, slot in zip(numbers.tolist(), slots.tolist(), strict=True):
        window, first = int(windows[number]), int(firsts[number])
        if not window:
            continue
        for name, side, cover, bound in zip(("key", "value"), plan.sides, covers, bounds, strict=True):
            tokens = getattr(plan.arguments, name)
            averaged = tokens.flatten(0, -3)[first : first + window, number % tokens.shape[-2]]
            written = side.layout.index(torch.tensor([slot + int(offsets[number])]))[0]
            bound[written] = mean_bound(averaged, cover[written].flatten()).view(-1, side.side.row)
    return bounds


def mean_bound(rows: torch.Tensor, golden: torch.Tensor) -> torch.Tensor:
    """How far the mean of float rows [N, D] may be from golden's [D] if fp32 sums it in an order of its own: [D] fp32.

    In any order the sum is off by at most (N - 1) * 2**-24 * sum(abs), and the quotient by 2**-24 of itself. Numbers so
    near to the exact mean are rounded to one result or to two; only where it is two may golden's be missed. The sign
    of a zero is left open: golden begins with 0.0, which turns -0.0 to it.
    """
    numbers = rows.double()
    mean, reach = numbers.mean(0), (len(rows) + 1) / len(rows) * 2.0**-24 * numbers.abs().sum(0)
    low, high = (mean - reach).to(rows.dtype), (mean + reach).to(rows.dtype)
    farthest = torch.maximum(high.float() - golden.float(), golden.float() - low.float())
    exact = (low == high) & mean.isfinite() & (golden != 0)
    return torch.where(exact, 0.0, farthest.nan_to_num(nan=torch.inf).clamp(min=_LEAST))
