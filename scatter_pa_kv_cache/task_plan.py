"""Plans of the compressed scenarios, whose items are tasks, one for each (sequence, head): 3, 4 and 5."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from .arguments import Arguments
from .carriers import carrier_dtype, token_rows
from .constants import constant, kept
from .data_rules import read_index_data
from .errors import TilingError
from .indexing import index_dtype
from .kernels.side import Side
from .kernels.tiling import UNIFIED_BUFFER_BYTES, choose_tiling
from .layout import RowLayout, row_layout
from .plans import Items, KernelPlan, SideTemplate, Template, kernel_of
from .rules import Choice

_NAMES = ("key", "value")
_INTEGERS_OF_32_BITS = ("int32", "uint32")
_WINDOW = 128  # tokens to average that a tile should hold: the tiles of a longer window wait for each other


@dataclass(eq=False)
class TaskPlan(KernelPlan):
    """Runs of a (sequence, head)'s tokens go to runs of slots from ``slot_mapping[task]`` on."""

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self._tensors(self.arguments.slot_mapping, self.caches, self.covers)

    def items(self) -> Items:
        data = read_index_data(self.arguments, self.choice)
        capacity = _capacity(self.sides[0].cache)
        numbers = torch.nonzero((data.rows > 0) & (data.slots < capacity)).flatten()
        slots = data.slots[numbers]
        return Items(numbers, slots, torch.minimum(data.rows[numbers], capacity - slots))

    def windows(self) -> torch.Tensor:
        """Tokens of each task that a Rope call averages, 0 where it averages none: [B*H], on the host."""
        data = read_index_data(self.arguments, self.choice)
        whole = (data.offsets == -1) | (data.offsets == data.lengths) | ~data.active
        return torch.where(whole, 0, data.windows)

    def window_starts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the window of each task begins, counted in its sequence and in all tokens: [B*H] each, on the host."""
        data = read_index_data(self.arguments, self.choice)
        key = self.arguments.key
        starts = (
            torch.arange(len(data.seq_lens)) * key.shape[1]
            if key.dim() == 4
            else data.seq_lens.cumsum(0) - data.seq_lens
        )
        return data.offsets, starts.repeat_interleave(key.shape[-2]) + data.offsets

    def without_means(self) -> TaskPlan:
        """The plan of an Omni call on the same arguments: the same, where no task has a window."""
        template = task_template(self.arguments, Choice(self.choice.scenario, "Omni"))
        bound = template.bind(self.arguments, self.run_mode, None)
        assert isinstance(bound, TaskPlan)
        return bound

    def part(
        self, numbers: torch.Tensor, slots: torch.Tensor, caches: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        some = torch.full((self.arguments.slot_mapping.numel(),), -1, dtype=slots.dtype)
        some[numbers] = slots
        return self._tensors(some, caches, self.covers_of(caches))

    def rows_named(self, part: Items, index: torch.Tensor) -> torch.Tensor:
        runs = [
            torch.arange(slot, slot + rows) for slot, rows in zip(part.slots.tolist(), part.rows.tolist(), strict=True)
        ]
        return index[:, torch.cat(runs)].flatten().long()

    def _tensors(
        self, slots: torch.Tensor, caches: tuple[torch.Tensor, ...], covers: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        arguments = self.arguments
        parameters = dict(self.kernel.arguments)
        seq_lens, longest = _int32(arguments.seq_lens), arguments.key.shape[-3]
        if arguments.key.dim() == 4:
            starts = constant(seq_lens, tuple(range(0, len(seq_lens) * longest, longest)), torch.int32)
        else:
            starts = seq_lens.cumsum(0, dtype=torch.int32) - seq_lens
        within = slots.clamp(-1, _capacity(caches[0]))  # else 64 bits cut to 32 may name a slot
        scalars = [_int32(within), _int32(arguments.compress_lens)]
        if self.choice.module != "alibi":
            offset = arguments.compress_seq_offset
            scalars.append(_int32(arguments.compress_lens if self.choice.scatter_mode == "Alibi" else offset))
        scalars += [seq_lens, starts]
        if "mean_dtype" in parameters:
            scalars.append(scalars[1].view(-1, 1).to(getattr(torch, parameters["mean_dtype"])))
        dtype = getattr(torch, parameters["index_dtype"])
        rows = [
            _slot_rows(cache, side.layout, _capacity(cache), 1 << longest.bit_length(), dtype)
            for side, cache in zip(self.sides, caches, strict=True)
        ]
        return (*scalars, *[side.source for side in self.sides], *rows, *covers)


def _int32(tensor: torch.Tensor | None) -> torch.Tensor:
    """An index tensor as the kernel's control flow reads it: flat, dense and int32."""
    assert tensor is not None, "rules K and G"
    if tensor.dtype is torch.int32 and tensor.dim() == 1 and tensor.is_contiguous():
        return tensor
    return tensor.to(torch.int32).contiguous().view(-1)


def _capacity(cache: torch.Tensor) -> int:
    return cache.shape[0] * cache.shape[1]


@kept(maxsize=16)
def _slot_rows(layout: RowLayout, capacity: int, beyond: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The cache row of every slot and group, [G, capacity + beyond]: -1 past the cache, where a run stops.

    Kept: it holds for every step and layer of one layout.
    """
    rows = layout.index(torch.arange(capacity, dtype=dtype, device=device)).view(-1, layout.groups)
    return pad(rows.t(), (0, beyond), value=-1)


def task_template(arguments: Arguments, choice: Choice) -> Template:
    """Raises TilingError where rows cannot express a cache's strides, or 32-bit scalars cannot count its slots."""
    if _capacity(arguments.key_cache) > 2**31 - 1:
        raise TilingError(
            f"key_cache has {_capacity(arguments.key_cache)} slots; the compressed scenarios count slots in 32 bits, "
            f"so it must have at most {2**31 - 1}",
            "layout",
        )
    averaged = choice.scatter_mode == "Rope"
    sides = tuple(_side(arguments, name, averaged) for name in _NAMES)
    dtype = index_dtype([side.layout for side in sides], torch.int32)
    row_bytes = max(side.side.row * side.carrier.itemsize for side in sides)
    tiling = choose_tiling(
        num_tokens=arguments.key.shape[:-1].numel(),  # rows: a task is a head
        row_bytes=row_bytes + (4 * sides[0].side.row if averaged else 0),
        index_bytes=dtype.itemsize,
        least=_WINDOW if averaged else 1,
    )
    parameters: dict[str, object] = {"heads": arguments.key.shape[-2]}
    if choice.module == "compress_4d":
        parameters["scatter_mode"] = choice.scatter_mode
    parameters["index_dtype"] = str(dtype).removeprefix("torch.")
    if choice.module in ("compress_4d", "rope"):
        key_dtype = arguments.key_dtype
        parameters["mean_dtype"] = key_dtype if key_dtype in _INTEGERS_OF_32_BITS else "float32"
    kernel = kernel_of(choice.module, sides, parameters | {"tile": tiling.tokens, "nbuffer": tiling.nbuffer})
    return Template(TaskPlan, choice, kernel, tiling.tokens, sides)


def _side(arguments: Arguments, name: str, averaged: bool) -> SideTemplate:
    source, cache = getattr(arguments, name), getattr(arguments, f"{name}_cache")
    dtype, wraps = getattr(arguments, f"{name}_dtype"), 0
    carrier = cache.dtype if averaged else carrier_dtype(source, cache)
    if averaged and dtype in ("uint8", "uint16"):  # their means are taken of the signed type, corrected
        carrier, wraps = getattr(torch, dtype.removeprefix("u")), 2 ** (8 * cache.element_size())
    if carrier is not cache.dtype:
        dtype = str(carrier).removeprefix("torch.")
    view = token_rows(source.view(carrier))
    layout = row_layout(f"{name}_cache", "Norm", cache.view(carrier), UNIFIED_BUFFER_BYTES // 12)
    return SideTemplate(
        name, carrier, view, layout, Side(dtype, layout.row, layout.groups, view.width, view.column, wraps)
    )
