"""Small calls of every scenario, and which of their source rows end in which cache rows: what ``draw layout`` draws.

Nothing is placed by hand: golden is run once for each source row with that row alone marked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import torch

from .arguments import normalise
from .layout import RowLayout
from .planning import template
from .reference import run_golden
from .rules import choose
from .scenarios import scenario

_LANES = 16  # float16 elements in 32 bytes


class Line(NamedTuple):
    """A source row. boxes: texts from left to right. tags: what the rows of the caches that hold it say.

    group: its token or task. state: "live"; "window" (averaged by Rope, dropped by Omni); or "padding", "skipped" and
    "dropped", which go nowhere.
    """

    boxes: tuple[str, ...]
    tags: tuple[str, ...]
    group: int
    state: str = "live"


@dataclass(frozen=True)
class Example:
    """A float16 call with caches of ``cache_shape`` and a key and, but for scenario 6, a value of ``shape``.

    owner: the line that each element of the source memory belongs to, -1 for none; flat, int64. indexes: the index
    tensors by name. groups: a label of each token or task. heads: one of each box of a line. read: the boxes that the
    drawn caches take, in their order: key_cache, or key_cache and value_cache.
    """

    number: int
    scatter_mode: str
    shape: tuple[int, ...]
    cache_shape: tuple[int, ...]
    owner: torch.Tensor
    indexes: dict[str, torch.Tensor]
    lines: tuple[Line, ...]
    groups: tuple[str, ...]
    heads: tuple[str, ...] = ("key",)
    read: tuple[int, ...] = (0,)
    options: dict[str, Any] = field(default_factory=dict)

    def call(self, line: int) -> dict[str, Any]:
        """The keyword arguments of ``scatter_pa_kv_cache``: zeros, and ones in that line of key and value."""
        marked = (self.owner == line).half()
        source = marked[: prod(self.shape)].view(self.shape)
        modes = {"cache_mode": scenario(self.number).cache_mode, "scatter_mode": self.scatter_mode}
        call = {"key": source, "key_cache": marked.new_zeros(self.cache_shape), **self.indexes, **modes, **self.options}
        if self.number != 6:
            call |= {"value": source, "value_cache": marked.new_zeros(self.cache_shape)}
        return call

    @cached_property
    def layout(self) -> RowLayout:
        """The rows of key_cache, as the plan of the call has them; value_cache has the same."""
        arguments = normalise(**self.call(0))
        choice = choose(arguments.spec)
        assert choice is not None
        return template(arguments, choice).sides[0].layout

    def targets(self) -> dict[int, list[int]]:
        """Cache row -> the lines that golden puts there, ascending; the mean of several weighs them alike."""
        layout, targets = self.layout, dict[int, list[int]]()
        for line in range(len(self.lines)):
            call = self.call(line)
            run_golden(call)
            rows = layout.cover(call["key_cache"])
            for row in rows[:, 0].nonzero().flatten().tolist():
                targets.setdefault(row, []).append(line)
        return dict(sorted(targets.items()))

    def is_mean(self, lines: list[int]) -> bool:
        """Is a cache row that these lines go to a mean? One of a single token is a mean too."""
        return self.scatter_mode == "Rope" and self.lines[lines[0]].state == "window"


def examples(number: int) -> tuple[tuple[Example, ...], ...]:
    """The examples of a scenario. Those of one tuple read the same lines."""
    return _EXAMPLES[number - 1]()


def _pa_nz() -> tuple[tuple[Example, ...], ...]:
    tokens, heads, size = 3, 2, 2 * _LANES
    pieces = heads * size // _LANES
    names = [f"head {h}, d {d}-{d + _LANES - 1}" for h in range(heads) for d in range(0, size, _LANES)]
    slots = [3, -1, 0]
    return ((_in_groups(1, "None", (tokens, heads, size), (2, pieces, 2, _LANES), names, slots),),)


def _nhsd() -> tuple[tuple[Example, ...], ...]:
    names = ["head 0", "head 1"]
    return ((_in_groups(7, "NHSD", (3, 2, _LANES), (2, 2, 3, _LANES), names, [4, -1, 2]),),)


def _norm() -> tuple[tuple[Example, ...], ...]:
    plain = _plain(2, (5, 2, 2), [6, -1, 1, 4, 3])
    return ((plain,), (_fused(2, (4, 2, 2), [2, 7, -1, 3], ("query", "key", "value"), (4, 8)),))


def _key_only() -> tuple[tuple[Example, ...], ...]:
    return ((_plain(6, (4, 1, 4), [5, 2, -1, 6]),), (_fused(6, (4, 1, 4), [1, 0, 6, -1], ("other", "key"), (4,)),))


def _compress_4d() -> tuple[tuple[Example, ...], ...]:
    lengths, slots, windows = (4, 3), [0, 3, 7, 9], [2, 1, 2, 1]
    both = tuple(_tasks(3, mode, lengths, slots, windows, [1, 0, 0, 1], 3, longest=4) for mode in ("Omni", "Rope"))
    return (both, (_tasks(3, "Alibi", lengths, [0, 2, 3, 6], [2, 1, 3, 2], None, 2, longest=4),))


def _alibi() -> tuple[tuple[Example, ...], ...]:
    return ((_tasks(4, "Alibi", (4, 3), [0, 3, -1, 6], [3, 2, 2, 1], None, 2),),)


def _rope_and_omni() -> tuple[tuple[Example, ...], ...]:
    tasks = ((4, 3), [0, 3, 7, 9], [2, 2, 2, 1], [1, -1, 0, 3], 3)
    return (tuple(_tasks(5, mode, *tasks) for mode in ("Omni", "Rope")),)


_EXAMPLES = (_pa_nz, _norm, _compress_4d, _alibi, _rope_and_omni, _key_only, _nhsd)


def _in_groups(
    number: int, mode: str, shape: tuple[int, ...], cache: tuple[int, ...], names: list[str], slots: list[int]
) -> Example:
    """Tokens of several source rows, called ``names``."""
    lines = tuple(
        Line((name,), (f"token {token}, {name}",), token, "live" if slot >= 0 else "padding")
        for token, slot in enumerate(slots)
        for name in names
    )
    owner = torch.arange(len(lines)).repeat_interleave(prod(shape) // len(lines))
    return Example(number, mode, shape, cache, owner, _slots(slots), lines, _token_labels(slots))


def _plain(number: int, shape: tuple[int, ...], slots: list[int]) -> Example:
    sides = ("key",) if number == 6 else ("key", "value")
    lines = tuple(
        Line(boxes, boxes, token, "live" if slot >= 0 else "padding")
        for token, slot in enumerate(slots)
        for boxes in [tuple(f"{side} {token}" for side in sides)]
    )
    owner = torch.arange(len(lines)).repeat_interleave(prod(shape[1:]))
    cache = (2, 4, *shape[1:])
    return Example(
        number, "None", shape, cache, owner, _slots(slots), lines, _token_labels(slots), sides, tuple(range(len(sides)))
    )


def _fused(
    number: int, shape: tuple[int, ...], slots: list[int], parts: tuple[str, ...], offsets: tuple[int, ...]
) -> Example:
    """Nct: a line of the buffer is a token's ``parts``, of one size."""
    size = prod(shape[1:])
    stride = size * len(parts)
    read = tuple(offset // size for offset in offsets)
    lines = tuple(
        Line(boxes, tuple(boxes[box] for box in read), token, "live" if slot >= 0 else "padding")
        for token, slot in enumerate(slots)
        for boxes in [tuple(f"{at}-{at + size - 1}" for at in range(token * stride, (token + 1) * stride, size))]
    )
    owner = torch.arange(len(lines)).repeat_interleave(stride)
    options = {"strides": (stride, stride), "offsets": (*offsets, 0)[:2]}
    cache = (2, 4, *shape[1:])
    return Example(number, "Nct", shape, cache, owner, _slots(slots), lines, _token_labels(slots), parts, read, options)


def _tasks(
    number: int,
    mode: str,
    lengths: tuple[int, ...],
    slots: list[int],
    windows: list[int],
    offsets: list[int] | None,
    blocks: int,
    longest: int = 0,
) -> Example:
    """A compressed call of two heads of size 1; ``longest`` is L of a 4-D key."""
    heads = 2
    shape = (len(lengths), longest, heads, 1) if longest else (sum(lengths), heads, 1)
    owner = torch.full((prod(shape) // heads, heads), -1)
    lines: list[Line] = []
    start = 0
    for batch, length in enumerate(lengths):
        for head in range(heads):
            task = batch * heads + head
            for place in range(longest or length):
                owner[start + place, head] = len(lines)
                offset = None if offsets is None else offsets[task]
                state = _state(place, length, slots[task], windows[task], offset)
                suffix = "" if state == "live" else f" ({state})"
                lines.append(Line((f"token {place}{suffix}",), (f"b{batch} h{head} token {place}",), task, state))
        start += longest or length
    indexes = {"compress_lens": windows} | ({} if offsets is None else {"compress_seq_offset": offsets})
    tensors = _slots(slots) | {name: torch.tensor(numbers) for name, numbers in indexes.items()}
    if longest:
        for name in ("slot_mapping", "compress_lens"):
            tensors[name] = tensors[name].view(-1, heads)
    tensors["seq_lens"] = torch.tensor(lengths)
    labels = tuple(
        f"batch {task // heads}, head {task % heads}: slot {slots[task]}, window {windows[task]}"
        + ("" if offsets is None else f", offset {offsets[task]}")
        for task in range(len(slots))
    )
    return Example(number, mode, shape, (blocks, 4, 1, 1), owner.flatten(), tensors, tuple(lines), labels)


def _state(place: int, length: int, slot: int, window: int, offset: int | None) -> str:
    """What becomes of a task's token, by sections 4.3 and 4.4 of the operator's specification."""
    if place >= length:
        return "padding"
    if slot < 0:
        return "skipped"
    if offset is None:
        return "live" if place >= length - window else "dropped"
    compressed = offset not in (-1, length) and window > 0
    return "window" if compressed and offset <= place < offset + window else "live"


def _slots(slots: list[int]) -> dict[str, torch.Tensor]:
    return {"slot_mapping": torch.tensor(slots)}


def _token_labels(slots: list[int]) -> tuple[str, ...]:
    return tuple(f"token {token}: slot {slot}" for token, slot in enumerate(slots))
