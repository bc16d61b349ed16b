"""The house itself: what imports what, what listing needs, and that the README's table is the code's."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import _checkout
import pytest

from scatter_pa_kv_cache.scenarios import SCENARIOS, scenario_table

# folder -> sub-packages that its modules may import
MAY_IMPORT = {
    "kernels": {"kernels", "patterns"},
    "patterns": {"patterns"},
    "golden": {"golden"},
}


def test_the_readme_holds_the_scenario_table() -> None:
    assert scenario_table() in (_checkout.ROOT / "README.md").read_text()


@pytest.mark.parametrize("module", sorted({module for row in SCENARIOS for module in row.modules.values()}))
def test_kernel_and_golden_share_a_name(module: str) -> None:
    kernel = (_checkout.ROOT / "kernels" / f"{module}.py").read_text()
    assert f"def {module}_kernel(" in kernel
    assert kernel.count("@pypto.frontend.jit") == 1
    assert "def reference(" in (_checkout.ROOT / "golden" / f"{module}.py").read_text()


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_imports_point_one_way(folder: str) -> None:
    for path in sorted((_checkout.ROOT / folder).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                target = (node.module or "").split(".")[0] if node.level == 2 else folder
                assert target in MAY_IMPORT[folder], f"{path.name} imports {target}"
            if isinstance(node, ast.ImportFrom | ast.Import) and not getattr(node, "level", 0):
                assert "scatter_pa_kv_cache" not in ast.unparse(node), f"{path.name}: {ast.unparse(node)}"


def test_unroll_lists_hold_one_alone() -> None:
    """Any other list loses writes."""
    for folder in ("kernels", "patterns"):
        for path in (_checkout.ROOT / folder).glob("*.py"):
            for call in ast.walk(ast.parse(path.read_text())):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "pypto.loop":
                    lists = [ast.unparse(word.value) for word in call.keywords if word.arg == "unroll_list"]
                    assert lists == ["[1]"], f"{path.name}:{call.lineno}"


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import scatter_pa_kv_cache.scenarios, scatter_pa_kv_cache.configs", ("torch", "pypto", "numpy")),
        ("from scatter_pa_kv_cache import scatter_pa_kv_cache, plan, row_index", ("pypto", "torch_npu")),
        ("import scatter_pa_kv_cache.arguments, scatter_pa_kv_cache.rules", ("pypto",)),
    ],
)
def test_imports_stay_light(statement: str, absent: tuple[str, ...], tmp_path: Path) -> None:
    script = f"{statement}\nimport sys\nprint([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(_checkout.ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_every_promise_names_tests_that_exist() -> None:
    promises = (_checkout.ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`(?:tests/)?(test_\w+\.py)(?:::(\w+))?`", promises)
    assert len(named) > 30
    for file, test in named:
        source = (_checkout.ROOT / "tests" / file).read_text()
        assert not test or f"def {test}(" in source, f"{file}::{test}"
