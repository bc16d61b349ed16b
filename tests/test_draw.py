"""The layout pictures: arrows end where brute force says, labels are readable, and the command's exit codes."""

from pathlib import Path

import _checkout
import pytest
import torch
from brute_force import Layout, compressed_addresses, token_addresses
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from PIL import Image, ImageChops, ImageStat

from scatter_pa_kv_cache import cli, draw, layout_examples
from scatter_pa_kv_cache.layout_examples import Example, examples
from scatter_pa_kv_cache.layout_pictures import WIDTH, Picture
from scatter_pa_kv_cache.scenarios import SCENARIOS, scenario

NUMBERS = [row.number for row in SCENARIOS]
PARTS = [(number, part) for number in NUMBERS for part in range(len([*sum(examples(number), ())]))]


@pytest.fixture(scope="module")
def pictures() -> dict[int, Picture]:
    return {number: Picture(number) for number in NUMBERS}


def example_of(number: int, part: int) -> Example:
    return sum(examples(number), ())[part]


def brute_force_targets(example: Example) -> dict[int, list[int]]:
    """Cache row -> lines, by the second formulation of the specification."""
    call = example.call(0)
    source, cache = Layout.of(call["key"]), Layout.of(call["key_cache"])
    slots = call["slot_mapping"].flatten().tolist()
    if "seq_lens" in call:
        windows, lengths = call["compress_lens"].flatten().tolist(), call["seq_lens"].tolist()
        offsets = call["compress_seq_offset"].tolist() if "compress_seq_offset" in call else ()
        addresses = compressed_addresses(example.scatter_mode, source, cache, slots, windows, lengths, offsets)
    else:
        kind = scenario(example.number).modules[example.scatter_mode].replace("key_only", "norm")
        kind = "nct" if example.scatter_mode == "Nct" else kind
        first = {name: numbers[0] for name, numbers in example.options.items()}
        addresses = token_addresses(kind, source, cache, slots, first.get("strides", 0), first.get("offsets", 0))
    found: dict[int, list[int]] = {}
    for element, taken in sorted(addresses.items()):
        lines = [int(example.owner[place]) for place in ((taken,) if isinstance(taken, int) else taken)]
        assert found.setdefault(element // example.layout.row, lines) == lines
    return found


@pytest.mark.parametrize(("number", "part"), PARTS)
def test_targets_are_those_of_brute_force(number: int, part: int) -> None:
    example = example_of(number, part)
    assert example.targets() == brute_force_targets(example)


@pytest.mark.parametrize(("number", "part"), PARTS)
def test_arrows_end_at_the_rows_of_golden(number: int, part: int, pictures: dict[int, Picture]) -> None:
    picture, example = pictures[number], example_of(number, part)
    drawn = [(row, line, path) for owner, line, row, path in picture.links if owner == part]
    expected = [(row, line) for row, lines in example.targets().items() for line in lines]
    assert [(row, line) for row, line, _ in drawn] == expected
    for row, _, path in drawn:
        (x, y), box = path.vertices[-1], picture.rows[part, row].get_bbox()
        assert box.y0 < y < box.y1
        assert x == (box.x1 if x < path.vertices[0][0] else box.x0)


@pytest.mark.parametrize(("number", "part"), PARTS)
def test_every_line_is_shown_for_what_becomes_of_it(number: int, part: int) -> None:
    example = example_of(number, part)
    written = {line for lines in example.targets().values() for line in lines}
    mode = example.scatter_mode
    stays = {"live"} if mode == "Omni" else {"live", "window"}
    assert written == {number for number, line in enumerate(example.lines) if line.state in stays}


@pytest.mark.parametrize("number", [2, 6])
def test_boxes_of_nct_name_the_elements_that_golden_copies(number: int) -> None:
    example = example_of(number, 1)
    call = example.call(0)
    buffer = torch.arange(len(example.owner)).half()
    for name in ("key", "value")[: len(example.read)]:
        call[name] = buffer[: call["key"].numel()].view(call["key"].shape)
    layout_examples.run_golden(call)
    for side, name in enumerate(("key_cache", "value_cache")[: len(example.read)]):
        rows = example.layout.cover(call[name])
        for row, (line,) in example.targets().items():
            assert example.lines[line].tags[side] == f"{int(rows[row, 0])}-{int(rows[row, -1])}"


def test_rope_and_omni_rows_say_what_they_hold(pictures: dict[int, Picture]) -> None:
    texts = [text.get_text() for text in pictures[5].figure.axes[0].texts]
    assert texts.count("b0 h0 mean of 1, 2") == 1
    assert texts.count("b1 h0 mean of 0, 1") == 1
    assert texts.count("b0 h0 token 3") == 2
    assert any('"Omni" (left) and "Rope" (right)' in text for text in texts)
    assert any("key [7, 2, 1], key_cache [3, 4, 1, 1]" in text for text in texts)


@pytest.mark.parametrize("number", NUMBERS)
def test_texts_are_inside_and_apart(number: int, pictures: dict[int, Picture]) -> None:
    figure = pictures[number].figure
    figure.canvas.draw()
    boxes = [(text.get_text(), text.get_window_extent()) for text in figure.findobj(Text) if text.get_text()]
    assert boxes[0][0].startswith(f"Scenario {number}: ")
    for place, (text, box) in enumerate(boxes):
        assert box.x0 >= 4, text
        assert box.x1 <= WIDTH - 4, text
        assert box.y0 >= 4, text
        assert box.y1 <= figure.bbox.height - 4, text
        for other, its_box in boxes[place + 1 :]:
            assert Bbox.intersection(box, its_box) is None, f"{text} over {other}"


@pytest.mark.parametrize("number", NUMBERS)
def test_texts_of_boxes_fit_them_and_no_arrow_crosses_a_text(number: int, pictures: dict[int, Picture]) -> None:
    picture = pictures[number]
    picture.figure.canvas.draw()
    axes = picture.figure.axes[0]
    for text in axes.texts:
        extent = text.get_window_extent()
        middle = ((extent.x0 + extent.x1) / 2, (extent.y0 + extent.y1) / 2)
        for patch in axes.patches:
            around = patch.get_window_extent()
            if isinstance(patch, Rectangle) and around.contains(*middle):
                assert around.x0 <= extent.x0, text.get_text()
                assert extent.x1 <= around.x1, text.get_text()
        for *_, path in picture.links:
            assert not path.transformed(axes.transData).intersects_bbox(extent, filled=False), text.get_text()


@pytest.mark.parametrize("number", NUMBERS)
def test_command_writes_png_and_svg_like_the_committed_picture(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "folder"
    assert cli.main(["draw", "layout", str(number), "--to", str(folder)]) == 0
    png, svg = folder / f"layout_{number}.png", folder / f"layout_{number}.svg"
    assert capsys.readouterr().out.split() == [str(png), str(svg)]
    assert svg.read_text().rstrip().endswith("</svg>")
    assert 5_000 < png.stat().st_size < 60_000
    new = Image.open(png).convert("RGB")
    committed = Image.open(_checkout.ROOT / "docs" / f"layout_{number}.png").convert("RGB")
    assert new.size == committed.size, "make pictures draws it anew"
    assert max(ImageStat.Stat(ImageChops.difference(new, committed)).mean) < 1, "make pictures draws it anew"


def test_without_a_number_all_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    monkeypatch.setattr(draw, "draw_layout", lambda number, folder: drawn.append(number) or ())
    assert cli.main(["draw", "layout", "--to", str(tmp_path)]) == 0
    assert drawn == NUMBERS


def test_a_missing_matplotlib_has_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(draw, "find_spec", lambda name: None)
    assert cli.main(["draw", "layout", "2", "--to", str(tmp_path)]) == 2
    assert "pip install 'scatter-pa-kv-cache[bench]'" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_a_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert cli.main(["draw", "layout", "2", "--to", str(tmp_path / "file")]) == 2
    assert "--to must name a folder" in capsys.readouterr().err


def test_swimlane_is_drawn_from_the_committed_figures(tmp_path: Path) -> None:
    assert cli.main(["draw", "swimlane", "--to", str(tmp_path)]) == 0
    assert (tmp_path / "swimlane.png").stat().st_size > 10_000


@pytest.mark.parametrize("words", [["layout", "8"], ["layout", "x"], ["map"], []])
def test_words_that_say_nothing(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["draw", *words])
    assert stopped.value.code == 2
    assert "usage" in capsys.readouterr().err
