"""Supply and safety: few and bounded requirements, no call that a person would not expect, and no network in sim."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import _checkout
import pytest
from packaging.requirements import Requirement

tomllib = pytest.importorskip("tomllib", reason="Python 3.11 brings it")

PROJECT = tomllib.loads((_checkout.ROOT / "pyproject.toml").read_text())["project"]
PINS = {
    requirement.name: str(requirement.specifier).removeprefix("==")
    for line in (_checkout.ROOT / "constraints.txt").read_text().splitlines()
    if not line.startswith("#")
    for requirement in [Requirement(line)]
}
RUN_TIME = [Requirement(text) for text in PROJECT["dependencies"]]
EXTRAS = {extra: [Requirement(text) for text in texts] for extra, texts in PROJECT["optional-dependencies"].items()}
MODULES = {
    path.relative_to(_checkout.ROOT).as_posix(): path.read_text()
    for folder in ("scatter_pa_kv_cache", "kernels", "patterns", "golden", "benchmarks")
    for path in sorted((_checkout.ROOT / folder).rglob("*.py"))
    if path == path.resolve()  # and not through the package's symbolic links
}

# modules that a user may do without -> what they alone import
OPTIONAL = {
    "benchmarks/plot.py": {"matplotlib"},
    "scatter_pa_kv_cache/demo.py": {"transformers"},
    "scatter_pa_kv_cache/draw.py": {"PIL", "matplotlib"},  # matplotlib brings PIL
    "scatter_pa_kv_cache/layout_pictures.py": {"matplotlib"},
    "scatter_pa_kv_cache/paged_cache.py": {"transformers"},
}
NEVER = re.compile(
    r"(socket|socketserver|ssl|http|urllib|urllib3|requests|httpx|aiohttp|asyncio|ftplib|smtplib|poplib|imaplib"
    r"|telnetlib|nntplib|xmlrpc|webbrowser|huggingface_hub|torch\.(hub|distributed))(\..+)?"
    r"|multiprocessing\.(managers|connection\.(Client|Listener))(\..+)?"
    r"|os\.(system|popen|exec\w+|spawn\w+|posix_spawnp?)|pty\..+|subprocess\.get(status)?output|shell="
    r"|tempfile\.mktemp"
    r"|(builtins\.)?(eval|exec|compile|__import__)"
    r"|(pickle|marshal|dill|cloudpickle)\.(loads?|Unpickler)|shelve\.\w+"
    r"|torch\.(load|jit\.load|package\..+)|numpy\.load|yaml\.\w*load\w*"
    r"|ctypes\.(CDLL|PyDLL|cdll|pydll|util)(\..+)?|cffi(\..+)?"
    r"|torch\.(ops|classes)\.load_library|torch\.utils\.cpp_extension(\..+)?"
)
EXCEPTIONS = {
    ("scatter_pa_kv_cache/sim_worker.py", "ctypes.CDLL"): "the library whose owner and digest calculator.py checked",
    ("benchmarks/cost_model.py", "pickle.load"): "the child reads from stdin what its parent, the same module, sent",
}


def bounded(requirement: Requirement) -> bool:
    operators = {clause.operator for clause in requirement.specifier}
    return "==" in operators or operators >= {">=", "<"}


def test_a_user_installs_three_packages_each_bounded_from_both_sides() -> None:
    assert {requirement.name for requirement in RUN_TIME} == {"torch", "pypto", "numpy"}
    assert [str(requirement) for requirement in RUN_TIME if not bounded(requirement)] == []


@pytest.mark.parametrize("extra", EXTRAS)
def test_extras_are_bounded_or_pinned(extra: str) -> None:
    loose = [str(need) for need in EXTRAS[extra] if not bounded(need) and need.name not in PINS]
    assert loose == []


def test_pins_are_what_is_asked_for() -> None:
    needs = [need for needs in (RUN_TIME, *EXTRAS.values()) for need in needs]
    assert PINS.keys() <= {need.name for need in needs}
    assert [str(need) for need in needs if need.name in PINS and PINS[need.name] not in need.specifier] == []


def test_imports_are_required_and_requirements_used() -> None:
    """numpy is used through torch alone: ``Tensor.numpy`` needs it, and torch does not require it."""
    roots = {file: {name.partition(".")[0] for name in imported(source)} for file, source in MODULES.items()}
    others = {file: names - sys.stdlib_module_names - {"torch", "pypto"} for file, names in roots.items()}
    assert {file: names for file, names in others.items() if names} == OPTIONAL
    assert {"torch", "pypto"} <= set().union(*roots.values())
    assert any(".numpy()" in source for source in MODULES.values())
    declared = {need.name for needs in EXTRAS.values() for need in needs}
    assert set().union(*OPTIONAL.values()) - declared == {"PIL"}


def imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def named(source: str) -> Iterator[str]:
    """The full dotted names of all that a module imports or refers to, by whatever alias; "shell=" where given."""
    tree = ast.parse(source)
    full = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            full |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            full |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    yield from imported(source)
    safe = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            words = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if words.get("shell", "False") != "False":
                yield "shell="
            if words.get("weights_only") == "True":
                safe.append(node.func)
        if isinstance(node, ast.Name | ast.Attribute) and node not in safe:
            root, dot, rest = ast.unparse(node).partition(".")
            yield full.get(root, root) + dot + rest


def forbidden(source: str) -> set[str]:
    return {name for name in named(source) if NEVER.fullmatch(name)}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import socket", {"socket"}),
        (
            "def f():\n    from urllib import request as r\n    r.urlopen(x)",
            {"urllib.request", "urllib.request.urlopen"},
        ),
        ("import os as o\nrun = o.system", {"os.system"}),
        ("from os import popen as p", {"os.popen"}),
        ("import subprocess\nsubprocess.run(x, shell=True)", {"shell="}),
        ("run(x, shell=flag)", {"shell="}),
        ("subprocess.run(x, shell=False)", set()),
        ("import torch\ntorch.load(f)", {"torch.load"}),
        ("import torch\ntorch.load(f, weights_only=True)", set()),
        ("import torch\ntorch.load(f, weights_only=False)", {"torch.load"}),
        ("eval(text)", {"eval"}),
        ("import builtins\nbuiltins.exec(text)", {"builtins.exec"}),
        ("import re\nre.compile(text)\nmodel.eval()", set()),
        ("import pickle\npickle.dumps(x)", set()),
        ("from pickle import Unpickler", {"pickle.Unpickler"}),
        ("import ctypes\nctypes.cdll.LoadLibrary(x)", {"ctypes.cdll", "ctypes.cdll.LoadLibrary"}),
        ("from tempfile import mktemp", {"tempfile.mktemp"}),
    ],
)
def test_the_search_finds_them(source: str, names: set[str]) -> None:
    assert forbidden(source) == names


def test_no_shell_no_network_no_foreign_code() -> None:
    """But for EXCEPTIONS, each with its reason."""
    assert len(MODULES) > 80
    assert {(file, name) for file, source in MODULES.items() for name in forbidden(source)} == EXCEPTIONS.keys()


HOOK = """
import os, socket, sys

def note(*words):
    line = " ".join(map(str, words)) + "\\n"
    log = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, line.encode())
    os.close(log)

def hook(event, arguments):
    internet = event == "socket.__new__" and arguments[1] in (socket.AF_INET, socket.AF_INET6)
    local = event in ("socket.connect", "socket.bind") and isinstance(arguments[1], str | bytes)
    if internet or (event in {events!r} and not local):
        note("seen", event)
        raise RuntimeError(event)

sys.addaudithook(hook)
note("loaded", os.getpid(), os.getppid())
"""
EVENTS = (
    *("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo"),
    *("socket.gethostbyname", "socket.gethostbyaddr", "urllib.Request", "http.client.connect", "os.system"),
)
CALLS = """
import os, torch, scatter_pa_kv_cache as spkc
key, value = torch.randn(5, 2, 16).half(), torch.randn(5, 2, 8).half()
caches = torch.zeros(4, 4, 2, 16).half(), torch.zeros(4, 4, 2, 8).half()
slots = torch.tensor([3, 0, 15, 8, 7], dtype=torch.int32)
spkc.scatter_pa_kv_cache(key, caches[0], slots, value, caches[1])
assert torch.equal(caches[0].view(16, 2, 16)[slots.long()], key)
print(os.getpid())
"""


def watched(program: str, folder: Path) -> tuple[str, list[list[str]]]:
    """Run a program whose Python processes all refuse the network and a shell; its output and what they noted."""
    log = folder / "log"
    (folder / "sitecustomize.py").write_text(HOOK.format(log=str(log), events=EVENTS))
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{_checkout.ROOT}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, [line.split() for line in log.read_text().splitlines()]


def test_sim_calls_meet_no_network_and_no_shell(tmp_path: Path) -> None:
    """Neither the host program nor its worker, as far as Python's own audit events tell."""
    pytest.importorskip("pypto")
    output, notes = watched(CALLS, tmp_path)
    host = output.strip()
    (first, worker) = notes
    assert first[:2] == ["loaded", host]
    assert (worker[0], worker[2]) == ("loaded", host)


@pytest.mark.parametrize(
    ("statement", "event"),
    [
        ("import socket; socket.socket()", "socket.__new__"),
        ("import socket; socket.getaddrinfo('localhost', 80)", "socket.getaddrinfo"),
        ("import os; os.system('true')", "os.system"),
    ],
)
def test_the_watch_sees_a_child(statement: str, event: str, tmp_path: Path) -> None:
    program = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {statement!r}]) != 1)"
    _, notes = watched(program, tmp_path)
    assert [note[0] for note in notes] == ["loaded", "loaded", "seen"]
    assert notes[-1][1] == event


def test_the_watch_lets_local_pipes_be(tmp_path: Path) -> None:
    _, notes = watched("from multiprocessing import Pipe; Pipe()", tmp_path)
    assert [note[0] for note in notes] == ["loaded"]
