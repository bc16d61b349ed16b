"""The benchmark of the cost model: right figures for right kernels, and no ratio for wrong ones."""

import csv

import _checkout  # noqa: F401
import pytest

pytest.importorskip("pypto")

from scatter_pa_kv_cache.benchmarks import model, results

TOKENS = 20
TILES = 400  # tokens that need several tiles of any size


@pytest.fixture(scope="module")
def row():
    return model.bench(512, TOKENS)


def test_a_proven_kernel_has_a_ratio(row):
    assert row.verdict == "PASS"
    assert row.cost.graph.scatters == row.expected
    assert row.ratio() == pytest.approx(row.field.e2e_us / row.cost.e2e_us)
    assert row.cells()[model.COLUMNS.index("verdict")] == "PASS"
    assert "refused" not in row.cells()


def test_the_fields_kernel_has_the_figures_it_is_known_for(row):
    """One tile in one task, which waits for five reshapes that are outside of E2E."""
    assert row.field.e2e_us == pytest.approx(2.74, abs=0.005)
    assert row.field.e2e_with_prologue_us == pytest.approx(14.36, abs=0.005)
    assert (row.field.graph.tasks, row.field.graph.scatters) == (1, 2)


def test_the_floor_is_the_bytes_that_must_move(row):
    moved = TOKENS * (4 * 1024 + 4)
    assert row.floor_us == pytest.approx(moved / 1.6e6)


@pytest.mark.parametrize(
    ("factory", "tokens", "reason"),
    [
        ("lossy_norm_kernel", TILES, "scatters are executed, "),
        ("swapped_norm_kernel", TOKENS, "kernel swapped_norm_kernel"),
    ],
)
def test_a_wrong_kernel_gets_no_ratio(factory, tokens, reason, tmp_path, capsys):
    path = tmp_path / "rows.csv"
    arguments = ["--tokens", str(tokens), "--kernel", f"hazard_kernels:{factory}", "--csv", str(path)]
    assert model.main(arguments) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith(model.LABEL)
    assert printed.out.count("refused") == 1 + len(model.ROW_PRICES)
    assert "WRONG" in printed.out
    assert reason in printed.err
    (kept,) = csv.DictReader(path.read_text().splitlines())
    assert kept["ratio_0"] == ""
    assert reason in kept["verdict"]


def test_rows_are_only_added(row, tmp_path):
    path = tmp_path / "rows.csv"
    results.append(path, [row.record()])
    once = path.read_text()
    results.append(path, [row.record(), row.record()])
    assert path.read_text().startswith(once)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert len(rows) == 3
    assert {kept["label"] for kept in rows} == {"PyPTO cost model, not measured"}
    with pytest.raises(ValueError, match="other columns"):
        results.append(path, [{"other": 1}])
    assert len(path.read_text().splitlines()) == 4


def test_numbers_are_at_least_one(capsys):
    with pytest.raises(SystemExit):
        model.main(["--tokens", "0"])
    assert "at least 1" in capsys.readouterr().err
