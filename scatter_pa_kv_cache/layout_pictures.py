"""Pictures of the examples: source rows, cache rows, and an arrow to where golden puts each. Needs matplotlib."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.path import Path

from .layout_examples import Example, Line, examples
from .scenarios import scenario

WIDTH = 900  # pixels; so are all lengths and places below
DPI = 100
_ROW, _GROUP_GAP, _BLOCK_GAP, _HEADER, _TITLES = 20, 5, 14, 20, 38
_INK, _FAINT = "#222222", "#767676"
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#7b5ea7")
_GREY, _EMPTY, _EDGE = "#e4e4e4", "#ffffff", "#999999"
_HATCH = "////"
_GONE = ("padding", "skipped", "dropped")  # states of a line that goes nowhere

Colour = str | tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class _Columns:
    """Where a part of a picture stands: the boxes of the source rows and those of a cache, left to right."""

    source: tuple[int, int]
    cache: tuple[int, int]
    block: int

    @property
    def cache_is_left(self) -> bool:
        return self.cache[0] < self.source[0]


_TOKENS = _Columns((140, 360), (550, 770), 840)
_PIECES = _Columns((140, 340), (490, 690), 868)
_TASKS = _Columns((140, 390), (550, 770), 840)
_RIGHT = _Columns((325, 575), (680, 822), 886)
_LEFT = _Columns((325, 575), (78, 220), 14)


class Picture:
    """The layout picture of a scenario.

    figure: ready to be saved. links: the arrows, as (part, source row, cache row, path in pixels from the upper left);
    a part is an example, counted from 0. rows: the first box of each cache row, by (part, row).
    """

    def __init__(self, number: int) -> None:
        self.links: list[tuple[int, int, int, Path]] = []
        self.rows: dict[tuple[int, int], Rectangle] = {}
        self._parts = 0
        self._states: set[str] = set()
        sets = examples(number)
        height = 40 + sum(_height(group) for group in sets) + 30
        self.figure = Figure(figsize=(WIDTH / DPI, height / DPI), dpi=DPI)
        FigureCanvasAgg(self.figure)
        self._axes = self.figure.add_axes((0, 0, 1, 1))
        self._axes.set(xlim=(0, WIDTH), ylim=(height, 0))
        self._axes.axis("off")
        row = scenario(number)
        self._text(12, 20, f"Scenario {number}: {row.title}", size=12, weight="bold")
        top = 40
        for group in sets:
            self._panel(group, top)
            top += _height(group)
        self._legend(top + 12)

    def _panel(self, group: tuple[Example, ...], top: int) -> None:
        for number, title in enumerate(_titles(group)):
            self._text(12, top + 8 + 17 * number, title)
        top += _TITLES
        columns = _columns(group)
        middle = top + _HEADER + _body(group) / 2
        middles = self._source(group[0], columns[0], top, middle)
        for example, place in zip(group, columns, strict=True):
            caches = ("key_cache", "value_cache")[: len(example.read)]
            names = caches if len(group) == 1 else (f"{caches[0]}, {example.scatter_mode}",)
            self._heads(names, *place.cache, top)
            self._cache(example, place, middle, middles)
            self._parts += 1

    def _source(self, example: Example, columns: _Columns, head: float, middle: float) -> list[float]:
        """Draws the source rows; returns the middle of each."""
        left, right = columns.source
        top = middle - _source_height(example) / 2
        self._heads(example.heads, left, right, head)
        middles: list[float] = []
        for number, line in enumerate(example.lines):
            first = not number or example.lines[number - 1].group != line.group
            if first and number:
                top += _GROUP_GAP
            label = example.groups[line.group]
            if first and _labels_above(example):
                self._text(left, top + _HEADER / 2, label, size=8.5)
                top += _HEADER
            elif first:
                count = sum(other.group == line.group for other in example.lines)
                self._text(left - 8, top + count * _ROW / 2, label, align="right")
            width = (right - left) / len(line.boxes)
            for box, text in enumerate(line.boxes):
                state = line.state if box in example.read else "not read"
                self._states.add(state)
                gone = state in (*_GONE, "not read")
                hatch = _HATCH if state == "window" else None
                colour = _GREY if gone else _tint(_colour(line))
                self._box(left + box * width, top, width, text, colour, hatch, _FAINT if gone else _INK)
            middles.append(top + _ROW / 2)
            top += _ROW
        return middles

    def _cache(self, example: Example, columns: _Columns, middle: float, middles: list[float]) -> None:
        targets, layout = example.targets(), example.layout
        capacity = layout.num_rows // layout.groups
        places = layout.index(torch.arange(capacity)).view(capacity, layout.groups)
        slot_of = {row: (slot, unit) for slot in range(capacity) for unit, row in enumerate(places[slot].tolist())}
        left, right = columns.cache
        top = middle - _cache_height(example) / 2
        start, last = top, (0, 0)
        for row in range(layout.num_rows):
            slot, unit = slot_of[row]
            block, place = divmod(slot, layout.block_size)
            if (block, unit) != last:
                if block != last[0]:
                    self._block(last[0], columns, start, top)
                    start = top = top + _BLOCK_GAP
                else:
                    top += _GROUP_GAP
                last = (block, unit)
            self._cache_row(example, columns, top, row, targets.get(row, []))
            unit_name = "head" if example.number == 7 else "chunk"
            label = f"slot {slot}" if layout.groups == 1 else f"row {row}: {unit_name} {unit}, place {place}"
            if columns.cache_is_left:
                self._text(left - 6, top + _ROW / 2, label, align="right", size=8)
            else:
                self._text(right + 6, top + _ROW / 2, label, size=8)
            for line in targets.get(row, []):
                self._arrow(columns, middles[line], top + _ROW / 2, line, row, _colour(example.lines[line]))
            top += _ROW
        self._block(last[0], columns, start, top)

    def _cache_row(self, example: Example, columns: _Columns, top: float, row: int, sources: list[int]) -> None:
        left, right = columns.cache
        width = (right - left) / len(example.read)
        for side in range(len(example.read)):
            text, hatch = "", None
            colour: Colour = _EMPTY
            if sources:
                line = example.lines[sources[0]]
                text, colour = line.tags[side], _tint(_colour(line))
                if example.is_mean(sources):
                    tokens = ", ".join(example.lines[source].tags[0].split()[-1] for source in sources)
                    text, hatch = f"{text.rsplit(' ', 2)[0]} mean of {tokens}", _HATCH
            else:
                self._states.add("kept")
            box = self._box(left + side * width, top, width, text, colour, hatch)
            self.rows.setdefault((self._parts, row), box)

    def _block(self, block: int, columns: _Columns, top: float, bottom: float) -> None:
        self._text(columns.block, (top + bottom) / 2, f"block {block}", align="center", colour=_FAINT, rotation=90)

    def _heads(self, names: tuple[str, ...], left: float, right: float, top: float) -> None:
        width = (right - left) / len(names)
        for place, name in enumerate(names):
            self._text(left + (place + 0.5) * width, top + _HEADER / 2 - 2, name, align="center", weight="bold")

    def _box(
        self, x: float, y: float, width: float, text: str, colour: Colour, hatch: str | None, ink: str = _INK
    ) -> Rectangle:
        box = Rectangle((x, y), width, _ROW, facecolor=colour, edgecolor=_EDGE, linewidth=0.7, hatch=hatch)
        self._axes.add_patch(box)
        if text:
            self._text(x + width / 2, y + _ROW / 2, text, align="center", size=8.5, colour=ink, behind=colour)
        return box

    def _arrow(self, columns: _Columns, y0: float, y1: float, line: int, row: int, colour: str) -> None:
        side = 0 if columns.cache_is_left else 1
        x0, x1 = columns.source[side], columns.cache[1 - side]
        bend = (x0 + x1) / 2
        path = Path([(x0, y0), (bend, y0), (bend, y1), (x1, y1)], [Path.MOVETO, *[Path.CURVE4] * 3])
        self._axes.add_patch(
            FancyArrowPatch(path=path, arrowstyle="-|>", mutation_scale=9, color=colour, linewidth=1.3)
        )
        self.links.append((self._parts, line, row, path))

    def _legend(self, y: float) -> None:
        entries: list[tuple[Colour, str | None, str]] = []
        if grey := [state for state in (*_GONE, "not read") if state in self._states]:
            entries.append((_GREY, None, f"not written: {' or '.join(grey)}"))
        if "window" in self._states:
            entries.append((_tint(_COLOURS[0]), _HATCH, "in the window: Rope writes the mean, Omni nothing"))
        if "kept" in self._states:
            entries.append((_EMPTY, None, "keeps its old bits"))
        x = 12.0
        for colour, hatch, text in entries:
            swatch = Rectangle((x, y - 7), 22, 14, facecolor=colour, edgecolor=_EDGE, linewidth=0.7, hatch=hatch)
            self._axes.add_patch(swatch)
            self._text(x + 29, y, text, size=8.5)
            x += 60 + 6.3 * len(text)

    def _text(
        self,
        x: float,
        y: float,
        text: str,
        align: str = "left",
        size: float = 9,
        weight: str = "normal",
        colour: str = _INK,
        rotation: int = 0,
        behind: Colour | None = None,
    ) -> None:
        artist = self._axes.text(
            x, y, text, ha=align, va="center", fontsize=size, fontweight=weight, color=colour, rotation=rotation
        )
        if behind is not None:  # keeps a hatch away from the letters
            artist.set_bbox({"facecolor": behind, "edgecolor": "none", "pad": 0.8})


def _titles(group: tuple[Example, ...]) -> tuple[str, str]:
    """The modes, and the shapes, of examples that share their lines."""
    first = group[0]
    row = scenario(first.number)
    modes = f'scatter_mode "{first.scatter_mode}"'
    if len(group) == 2:
        modes = f'scatter_mode "{first.scatter_mode}" (left) and "{group[1].scatter_mode}" (right)'
    words = "".join(f", {name} {numbers}" for name, numbers in first.options.items())
    if "seq_lens" in first.indexes:
        words += f", seq_lens {first.indexes['seq_lens'].tolist()}"
    cache = list(first.cache_shape)
    value = "no value" if first.number == 6 else f"value {list(first.shape)}, value_cache {cache}"
    if first.number != 6 and len(first.read) == 1:
        value += ": the same rows"
    if first.number == 1:
        value += "; 5-D caches: the same memory"
    if first.scatter_mode == "Nct":
        value += "; numbers: elements of the buffer"
    return (
        f'cache_mode "{row.cache_mode}", {modes}{words}; float16',
        f"key {list(first.shape)}, key_cache {cache}; {value}",
    )


def _columns(group: tuple[Example, ...]) -> tuple[_Columns, ...]:
    if len(group) == 2:
        return _LEFT, _RIGHT
    if _labels_above(group[0]):
        return (_TASKS,)
    return (_TOKENS,) if group[0].layout.groups == 1 else (_PIECES,)


def _labels_above(example: Example) -> bool:
    return "batch" in example.groups[0]


def _source_height(example: Example) -> int:
    headers = len(example.groups) * _HEADER if _labels_above(example) else 0
    return len(example.lines) * _ROW + (len(example.groups) - 1) * _GROUP_GAP + headers


def _cache_height(example: Example) -> int:
    layout, blocks = example.layout, example.cache_shape[0]
    return layout.num_rows * _ROW + (blocks - 1) * _BLOCK_GAP + blocks * (layout.groups - 1) * _GROUP_GAP


def _body(group: tuple[Example, ...]) -> int:
    return max(_source_height(group[0]), *(_cache_height(example) for example in group))


def _height(group: tuple[Example, ...]) -> int:
    return _TITLES + _HEADER + _body(group) + 20


def _colour(line: Line) -> str:
    return _COLOURS[line.group % len(_COLOURS)]


def _tint(colour: str) -> Colour:
    red, green, blue = (1 - 0.38 * (1 - part) for part in to_rgb(colour))
    return red, green, blue
