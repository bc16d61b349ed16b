"""The command line: what each command prints and its exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import _checkout
import pytest

from scatter_pa_kv_cache import cli, environment

CALL = {
    "key": "32,8,128",
    "key_cache": "64,128,8,128",
    "slot_mapping": "32",
    "value": "32,8,128",
    "value_cache": "64,128,8,128",
}


def options(call: dict[str, str]) -> list[str]:
    return [word for name, text in call.items() for word in (f"--{name.replace('_', '-')}", text)]


def test_check_names_scenario_kernel_and_tile(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", *options(CALL)]) == 0
    out = capsys.readouterr().out
    assert "accepted: scenario 2" in out
    assert "kernel: norm, " in out
    assert "key_cache: rows of 1024 bfloat16, 1 a slot" in out


def test_check_says_which_rule_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", *options(CALL | {"slot_mapping": "31"})]) == 1
    assert "refused, code 561002, rule F3: slot_mapping has 31 slots" in capsys.readouterr().out


def test_check_reads_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nz = {
        "key": "4,2,512:int8",
        "key_cache": "9,32,16,32:int8",
        "slot_mapping": "4:int64",
        "value": "4,2,64",
        "value_cache": "9,8,16,16",
        "cache_mode": "PA_NZ",
        "soc": "A2",
    }
    (tmp_path / "call.json").write_text(json.dumps(nz))
    assert cli.main(["check", str(tmp_path / "call.json")]) == 0
    out = capsys.readouterr().out
    assert "scenario 1" in out
    assert "index int64" in out
    nct = CALL | {"scatter_mode": "Nct", "strides": [3072, 3072], "offsets": [1024, 2048]}
    (tmp_path / "call.json").write_text(json.dumps(nct))
    assert cli.main(["check", str(tmp_path / "call.json")]) == 0
    assert "kernel: nct" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "no call is described"),
        (["--key", "3,x"], "it must be integers"),
        (["--key", "3,-1"], "no size may be negative"),
        (["--key", "3,2,4:floaty"], "torch does not know"),
        (["nowhere.json"], "nowhere.json"),
    ],
)
def test_a_description_that_says_nothing(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_env_tells_what_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["env"]) == 0
    out = capsys.readouterr().out
    for name in ("torch ", "pypto ", "torch_npu", "CANN", "NPU", "g++", "cache folder", "run mode"):
        assert name in out


def test_env_has_a_remedy_for_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_version", lambda package: None)
    monkeypatch.setattr(environment.shutil, "which", lambda name: None)
    monkeypatch.setattr(environment, "find_spec", lambda name: object())
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    rows, remedies = environment.report()
    assert ("run mode", "none can run here") in rows
    text = "\n".join(remedies)
    for word in ("pip install torch==", "pip install pypto==", "apt-get install g++", "set_env.sh", "XDG_CACHE_HOME"):
        assert word in text


def test_no_command_prints_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "check" in capsys.readouterr().out


def test_list_needs_neither_torch_nor_pypto(tmp_path: Path) -> None:
    script = "import sys; from scatter_pa_kv_cache.cli import main; main(['list'])"
    script += "; print({'torch', 'pypto'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(_checkout.ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "set()"
    assert "config1_performance_p0" in done.stdout
