"""The command line: list, run, check, bench, draw, env and demo.

Exit codes: 0 all well, 1 something failed or is refused, 2 the command cannot be carried out as given.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from .scenarios import TENSORS

BENCHES = {
    "model": "PyPTO's cost model, beside the field's kernel; no NPU needed",
    "host": "what a call costs on the host before the launch",
    "sim": "wall time and memory of sim calls",
    "npu": "the harness for an NPU; never run by this project",
    "plot": "draw the pictures from the CSV",
    "fused": "the cost model of the fused kernels",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if command in ("list", "run"):
        from . import runner

        return runner.main(["--list", *rest] if command == "list" else rest)
    if command == "bench" and rest and rest[0] in BENCHES:
        return importlib.import_module(f"{__package__}.benchmarks.{rest[0]}").main(rest[1:])
    options = _parser().parse_args(arguments)
    if options.command == "check":
        from . import describe

        return describe.main(options)
    if options.command == "env":
        from . import environment

        return environment.main()
    if options.command == "draw":
        from . import draw

        return draw.main(options)
    if options.command == "demo":
        from . import demo

        return demo.main(rest)
    _parser().print_help()
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scatter_pa_kv_cache", description="Paged KV-cache writes for Ascend NPUs."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.add_parser("list", add_help=False, help="list the named configs; needs neither torch nor pypto")
    commands.add_parser("run", add_help=False, help="run configs by name, each checked bit for bit (run --help)")

    check = commands.add_parser(
        "check",
        help="which scenario, kernel and tile a call gets, or which rule refuses it",
        description="Describe a call, by a JSON file or by options; nothing is allocated or written.",
        epilog='tensors are SHAPE or SHAPE:DTYPE, such as 32,8,128:bfloat16; the JSON has the same names, as {"key": '
        '"32,8,128:bfloat16", ..., "cache_mode": "PA_NZ"}',
    )
    check.add_argument("file", nargs="?", metavar="JSON", help="a file with the call, - for standard input")
    for name in TENSORS:
        check.add_argument(f"--{name.replace('_', '-')}", metavar="SHAPE:DTYPE")
    for name in ("cache-mode", "scatter-mode", "soc", "key-dtype", "value-dtype"):
        check.add_argument(f"--{name}")
    for name in ("strides", "offsets"):
        check.add_argument(f"--{name}", metavar="KEY,VALUE", help="for Nct, in elements")

    bench = commands.add_parser("bench", help="benchmarks: " + ", ".join(BENCHES))
    bench.add_argument("which", choices=BENCHES, help="; ".join(f"{name}: {text}" for name, text in BENCHES.items()))

    commands.add_parser("env", help="versions, compiler, NPU, cache folder, and what to do about what is missing")

    draw = commands.add_parser("draw", help="pictures: the layout of a scenario, or a swimlane of one call")
    draw.add_argument("what", choices=("layout", "swimlane"))
    draw.add_argument("scenario", nargs="?", type=int, choices=range(1, 8), help="for layout: 1 to 7, default all")
    draw.add_argument("--to", default=".", metavar="FOLDER", help="where the PNG and SVG go (default: here)")

    commands.add_parser(
        "demo", add_help=False, help="a small Llama decodes with a paged cache; every logit is compared"
    )
    return parser
