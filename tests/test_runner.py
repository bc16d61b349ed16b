"""The runner's command line: what it lists, chooses, prints and returns."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import _checkout
import pytest
from faults import FAULTS

from scatter_pa_kv_cache import api, checker, runner, runtime
from scatter_pa_kv_cache.config import Config
from scatter_pa_kv_cache.errors import SimulationError
from scatter_pa_kv_cache.reference import run_golden

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
CONFIGS = runner.ALL_CONFIGS
NAMES = [config.name for config in CONFIGS]
SCRIPT = _checkout.ROOT / "tests" / "test_scatter_pa_kv_cache.py"


@pytest.fixture
def golden_kernel(monkeypatch: Patch) -> None:
    """The public call does what golden says, at once."""
    replace_kernel(monkeypatch, run_golden)


@pytest.fixture
def ran(monkeypatch: Patch) -> list[tuple[str, str, int, str]]:
    """The (config, run mode, seed, device) that the runner ran; nothing is really run."""
    calls: list[tuple[str, str, int, str]] = []

    def record(config: Config, run_mode: str, seed: int, device: str) -> runner.Outcome:
        calls.append((config.name, run_mode, seed, device))
        return runner.Outcome(runner.PASS, "bit-exact")

    monkeypatch.setattr(runner, "run_config", record)
    return calls


def replace_kernel(monkeypatch: Patch, kernel: Callable[[dict[str, Any]], None]) -> None:
    def call(*, run_mode: str, **inputs: Any) -> None:
        assert run_mode == "sim"
        kernel(inputs)

    monkeypatch.setattr(api, "scatter_pa_kv_cache", call)


def names_of(calls: list[tuple[str, str, int, str]]) -> list[str]:
    return [call[0] for call in calls]


def test_listing_imports_neither_torch_nor_pypto() -> None:
    code = (
        "import sys; from scatter_pa_kv_cache import runner; code = runner.main(['--list']); "
        "print('imported:', [name for name in ('torch', 'pypto', 'numpy') if name in sys.modules]); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=_checkout.ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "imported: []"
    assert done.stderr == ""


def test_listing_shows_every_config(capsys: Capture) -> None:
    assert runner.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == NAMES
    line = lines[NAMES.index("pa_nz_performance_p0")]
    for words in ("1 pa_nz", "[257, 1, 512]", "[3, 16, 128, 32]", "9760", "int8/bfloat16", "int32", "latent key"):
        assert words in line
    assert lines[NAMES.index("norm_65536_tokens")].endswith("[slow]")


def test_listing_what_was_chosen(capsys: Capture) -> None:
    assert runner.main(["--list", "-k", "nhsd_int8", "norm_one_token"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["norm_one_token", "nhsd_int8"]


def test_the_script_lists_and_refuses() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--list"], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == len(CONFIGS)
    done = subprocess.run([sys.executable, SCRIPT, "no_such_config"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no_such_config" in done.stderr


def test_an_unknown_name_lists_the_valid_ones(capsys: Capture, ran: list[Any]) -> None:
    assert runner.main(["norm_one_token", "norm_on_token"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    first, *valid = captured.err.splitlines()
    assert first == "there is no config named norm_on_token; the configs are:"
    assert [line.strip() for line in valid] == NAMES
    assert ran == []


def test_a_substring_that_fits_nothing(capsys: Capture) -> None:
    assert runner.main(["-k", "nowhere"]) == 2
    assert "no config has nowhere in its name" in capsys.readouterr().err


def test_a_bad_run_mode_is_a_usage_error() -> None:
    with pytest.raises(SystemExit) as caught:
        runner.main(["--run_mode", "gpu"])
    assert caught.value.code == 2


def test_choice_of_configs(ran: list[Any]) -> None:
    assert runner.main(["scatter_pa_kv_cache::test_nhsd_int8", "norm_one_token", "--run_mode", "sim"]) == 0
    assert names_of(ran) == ["norm_one_token", "nhsd_int8"]
    ran.clear()
    assert runner.main(["--run-mode", "sim", "-k", "pa_nz_block", "-k", "nhsd", "norm_full"]) == 0
    assert set(names_of(ran)) == {n for n in NAMES if "pa_nz_block" in n or "nhsd" in n} | {"norm_full"}


def test_slow_configs_run_by_name_or_option(ran: list[Any]) -> None:
    slow = [config.name for config in CONFIGS if config.slow]
    assert slow
    assert runner.main(["--run_mode", "sim"]) == 0
    assert names_of(ran) == [name for name in NAMES if name not in slow]
    ran.clear()
    assert runner.main(["--run_mode", "sim", "--slow"]) == 0
    assert names_of(ran) == NAMES
    ran.clear()
    assert runner.main(["--run_mode", "sim", slow[0]]) == 0
    assert names_of(ran) == slow[:1]


def test_seed_and_default_run_mode(ran: list[Any], monkeypatch: Patch) -> None:
    monkeypatch.setattr(runtime, "npu_available", lambda: False)
    assert runner.main(["norm_one_token", "--seed", "7"]) == 0
    assert ran == [("norm_one_token", "sim", 7, "cpu")]


def test_npu_without_an_npu(capsys: Capture, ran: list[Any], monkeypatch: Patch) -> None:
    monkeypatch.setattr(runtime, "npu_available", lambda: False)
    assert runner.main(["--run_mode", "npu"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert "there is no NPU" in captured.err
    assert ran == []


@pytest.mark.parametrize(("variable", "number"), [(None, 0), ("3", 3)])
def test_npu_device(variable: str | None, number: int, ran: list[Any], monkeypatch: Patch) -> None:
    import torch

    chosen: list[int] = []
    monkeypatch.setattr(runtime, "npu_available", lambda: True)
    monkeypatch.setattr(torch, "npu", type("npu", (), {"set_device": staticmethod(chosen.append)}), raising=False)
    monkeypatch.delenv(runner.DEVICE_VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(runner.DEVICE_VARIABLE, variable)
    assert runner.main(["norm_one_token"]) == 0
    assert (chosen, ran) == ([number], [("norm_one_token", "npu", 0, f"npu:{number}")])


def test_npu_device_that_is_no_number(capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setattr(runtime, "npu_available", lambda: True)
    monkeypatch.setenv(runner.DEVICE_VARIABLE, "first")
    assert runner.main([]) == 2
    assert capsys.readouterr().err == "TILE_FWK_DEVICE_ID is 'first'; it must be the number of an NPU, such as 0\n"


@pytest.mark.usefixtures("golden_kernel")
def test_passing_configs(capsys: Capture) -> None:
    assert runner.main(["--run_mode", "sim", "config1_performance_p0", "norm_padded_blocks", "key_only_nct"]) == 0
    captured = capsys.readouterr()
    header, fewer, *lines, last = captured.out.splitlines()
    assert header == "3 configs, run mode sim, every bit of every cache compared with golden"
    assert "sim uses fewer cache blocks than npu" in fewer
    assert fewer.endswith("config1_performance_p0 (21 of 9760)")
    assert [line.split()[:2] for line in lines] == [
        ["[PRECISION_PASS]", name] for name in ("config1_performance_p0", "norm_padded_blocks", "key_only_nct")
    ]
    for words in ("scenario 2 norm", "T=2633 H=2 D=256/256 NB=21 BS=128 bfloat16 int32", "bit-exact", " s"):
        assert words in lines[0]
    assert last.startswith("All tests passed!")
    assert captured.err == ""


@pytest.mark.usefixtures("golden_kernel")
def test_no_word_of_blocks_where_they_are_the_same(capsys: Capture) -> None:
    assert runner.main(["--run_mode", "sim", "norm_one_token"]) == 0
    assert "fewer" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["norm_tail_of_one", "nhsd_int8", "norm_interleaved"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_wrong_kernel_fails(
    fault: Callable[[dict[str, Any]], None], name: str, capsys: Capture, monkeypatch: Patch
) -> None:
    replace_kernel(monkeypatch, fault)
    assert runner.main(["--run_mode", "sim", name]) == 1
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith(f"[PRECISION_FAIL] {name}")
    for words in ("key_cache: ", " elements wrong, the first at [", "max abs difference ", "neighbours touched: "):
        assert words in line
    if name == "norm_tail_of_one":
        touched = fault.__name__ in ("shifted_slot", "off_by_one_block", "touched_neighbour")
        assert ("neighbours touched: 0" not in line) == touched
    assert captured.out.splitlines()[-1].startswith("1 of 1 failed, 0 passed")


def test_a_touched_gap_fails(capsys: Capture, monkeypatch: Patch) -> None:
    def kernel(call: dict[str, Any]) -> None:
        run_golden(call)
        cache = call["key_cache"]
        cache.as_strided((1,), (1,), cache[0].numel()).zero_()

    replace_kernel(monkeypatch, kernel)
    assert runner.main(["--run_mode", "sim", "norm_padded_blocks"]) == 1
    assert "bit-exact; gap elements touched: 1" in capsys.readouterr().err


def raising(error: Exception) -> Callable[[dict[str, Any]], None]:
    def kernel(call: dict[str, Any]) -> None:
        raise error

    return kernel


def test_an_error_fails_in_one_line(capsys: Capture, monkeypatch: Patch) -> None:
    replace_kernel(monkeypatch, raising(RuntimeError("no kernel\n  in the middle\nat all\n")))
    assert runner.main(["--run_mode", "sim", "norm_one_token"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "RuntimeError: no kernel ... at all" in line


def test_an_error_after_a_write_says_so(capsys: Capture, monkeypatch: Patch) -> None:
    def kernel(call: dict[str, Any]) -> None:
        run_golden(call)
        raise SimulationError("too late")

    replace_kernel(monkeypatch, kernel)
    assert runner.main(["--run_mode", "sim", "norm_one_token"]) == 1
    assert "SimulationError: too late; and it changed the caches" in capsys.readouterr().err


def test_an_expected_refusal_of_sim_is_skipped(capsys: Capture, monkeypatch: Patch) -> None:
    replace_kernel(monkeypatch, raising(SimulationError("sim cannot compute the mean of int32")))
    assert runner.main(["--run_mode", "sim", "compress_4d_rope_int32"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("[PRECISION_SKIP] compress_4d_rope_int32")
    assert "the mean of int32" in lines[-2]
    assert lines[-1].startswith("All tests passed! (0 configs, 1 skipped")


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("compress_4d_rope_int32", SimulationError("another reason")),
        ("compress_4d_rope_int32", ValueError("the mean of int32")),
        ("compress_4d_rope_int8", SimulationError("the mean of int8")),
    ],
)
def test_any_other_refusal_fails(name: str, error: Exception, monkeypatch: Patch) -> None:
    replace_kernel(monkeypatch, raising(error))
    assert runner.main(["--run_mode", "sim", name]) == 1


@pytest.mark.usefixtures("golden_kernel")
def test_a_refusal_that_does_not_come_fails(capsys: Capture) -> None:
    assert runner.main(["--run_mode", "sim", "compress_4d_rope_int32"]) == 1
    assert "is expected to refuse it" in capsys.readouterr().err


@pytest.mark.usefixtures("golden_kernel")
@pytest.mark.parametrize("terminal", [True, False])
def test_progress_only_on_a_terminal(terminal: bool, monkeypatch: Patch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    assert runner.main(["--run_mode", "sim", "norm_one_token", "nhsd_one_head"]) == 0
    drawn = stream.getvalue()
    assert ("[##########..........] 1/2 nhsd_one_head" in drawn) == terminal
    assert drawn.endswith("\r\x1b[K") if terminal else drawn == ""


def test_a_mean_within_its_tolerance_passes(capsys: Capture, monkeypatch: Patch) -> None:
    def kernel(call: dict[str, Any]) -> None:
        run_golden(call)
        means = checker.mean_rows(call, "float32")
        assert means is not None
        row = call["key_cache"][means[..., 0, 0]]
        call["key_cache"][means[..., 0, 0]] = row + 2**-22

    replace_kernel(monkeypatch, kernel)
    monkeypatch.setitem(checker.TOLERANCES, "float32", 2**-21)
    assert runner.main(["--run_mode", "sim", "rope_float32"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "PRECISION_PASS" in line)
    assert "differ within the tolerance, max abs difference 2.38" in line
    monkeypatch.setitem(checker.TOLERANCES, "float32", 2**-24)
    assert runner.main(["--run_mode", "sim", "rope_float32"]) == 1
