"""Prints, as JSON, which tensor each scatter of the compiled compressor kernel writes into: a parameter's name, or null
for memory of its own. Run as a program, in a folder of its own.
"""

import json
from pathlib import Path

import _checkout  # noqa: F401
from fused_runs import named

from scatter_pa_kv_cache.fused import launches


def targets() -> list[str | None]:
    (program,) = Path("output").glob("*/program.json")
    found = []
    for function in json.loads(program.read_text())["functions"]:
        tensors = {tensor["magic"]: tensor["rawtensor"] for tensor in function["tensors"]}
        symbols = {raw["rawmagic"]: raw.get("symbol") for raw in function["rawtensors"]}
        found += [
            symbols[tensors[operation["ooperands"][0]]]
            for operation in function["operations"]
            if function["graphtype"] == 3 and operation["opcode"] == "INDEX_OUTCAST"
        ]
    return found


if __name__ == "__main__":
    (launch,) = launches(named("compressor_overshoot"))
    launch.kernel.build("cost")(*launch.tensors)
    Path("targets.json").write_text(json.dumps(targets()))
