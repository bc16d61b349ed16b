"""Writes sources.json: the AICore sources that PyPTO emits for the gather kernel, Norm and PA_NZ. Run as a program.

Everything is written below the working directory; see device_code.py for how.
"""

import json
import os
from pathlib import Path

import _checkout  # noqa: F401
import pypto  # noqa: F401  # before ASCEND_HOME_PATH
import torch
from device_code import emitted_by

from scatter_pa_kv_cache.gather_plan import make_gather_plan
from scatter_pa_kv_cache.gather_rules import normalise


def sources(mode: str) -> list[str]:
    shapes = {
        "Norm": ((4, 16, 2, 64), (4, 16, 2, 32), (40, 2, 64), (40, 2, 32)),
        "PA_NZ": ((4, 8, 16, 16), (4, 4, 16, 16), (40, 128), (40, 64)),
    }[mode]
    key_cache, value_cache, key, value = (torch.zeros(shape, dtype=torch.bfloat16) for shape in shapes)
    tables, lengths = torch.zeros(2, 3, dtype=torch.int32), torch.tensor([0, 20, 40], dtype=torch.int32)
    plan = make_gather_plan(normalise((key_cache, value_cache, tables, lengths, key, value, None), mode, True, None))
    rows, outs = [side.rows for side in plan.sides], [side.out for side in plan.sides]
    return emitted_by(plan.kernel, plan.tensors(plan.sequences(), rows, outs))


if __name__ == "__main__":
    Path("cann/include/pto").mkdir(parents=True)
    os.environ["ASCEND_HOME_PATH"] = str(Path("cann").resolve())
    emitted = {mode: sources(mode) for mode in ("Norm", "PA_NZ")}
    Path("sources.json").write_text(json.dumps(emitted))
