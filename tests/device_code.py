"""Prints, as JSON, the AICore sources that PyPTO emits for the kernels of some base calls. Run as a program.

PyPTO emits them without a device compiler once ASCEND_HOME_PATH, set after its import, names a folder with an empty
include/pto. Everything is written below the working directory.
"""

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import _checkout  # noqa: F401
import pypto  # noqa: F401  # before ASCEND_HOME_PATH
import rule_cases
import torch

from scatter_pa_kv_cache.api import plan
from scatter_pa_kv_cache.kernels.tiling import MERGED
from scatter_pa_kv_cache.runtime import Kernel


def emit(call: dict, **changes: object) -> list[str]:
    """The sources of the kernel of one call, some of its factory's arguments changed."""
    made = plan(**call)
    return emitted_by(
        Kernel(made.kernel.factory, tuple((dict(made.kernel.arguments) | changes).items())), made.tensors()
    )


def emitted_by(kernel: Kernel, tensors: Sequence[torch.Tensor]) -> list[str]:
    """The sources of a kernel, compiled for these tensors."""
    kernel.build("code")(*tensors)
    sources = [path.read_text() for path in sorted(Path("output").glob("*/kernel_aicore/*_aiv.cpp"))]
    shutil.rmtree("output")
    return sources


def calls() -> dict[str, dict]:
    cases = {name: getattr(rule_cases, name)() for name in ("norm", "nct", "nz4", "nhsd", "siso", "alibi", "rope")}
    cases["four_d"], cases["four_d_alibi"] = rule_cases.four_d(), rule_cases.four_d_alibi()
    cases["omni"] = rule_cases.rope() | {"scatter_mode": "Omni"}
    cases["int64"] = rule_cases.norm() | {"slot_mapping": rule_cases.norm()["slot_mapping"].long()}
    for dtype in ("float8_e4m3fn", "float8_e5m2", "hifloat8", "int32", "uint32"):
        stored = torch.uint8 if dtype == "hifloat8" else getattr(torch, dtype)
        rope = rule_cases.rope()
        names = ("key", "value", "key_cache", "value_cache")
        cases[f"rope {dtype}"] = rope | {name: torch.zeros(rope[name].shape).to(stored) for name in names}
        if dtype == "hifloat8":
            cases[f"rope {dtype}"] |= {"key_dtype": dtype, "value_dtype": dtype}
    return cases


if __name__ == "__main__":
    Path("cann/include/pto").mkdir(parents=True)
    os.environ["ASCEND_HOME_PATH"] = str(Path("cann").resolve())
    emitted = {name: emit(call) for name, call in calls().items()}
    emitted["norm merged"] = emit(rule_cases.norm(), nbuffer=MERGED)
    sys.stdout.flush()
    Path("sources.json").write_text(json.dumps(emitted))
