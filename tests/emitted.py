"""The sources that a script of tests/ has PyPTO emit, in a process and a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import _checkout


def emitted(script: str, folder: Path) -> dict[str, list[str]]:
    """Run the script, which leaves sources.json in the folder: sources by kernel."""
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONPATH": str(_checkout.ROOT)}
    path = Path(__file__).with_name(script)
    done = subprocess.run(
        [sys.executable, str(path)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads((folder / "sources.json").read_text())
