"""Run the named configs and compare every cache with golden, bit for bit. Listing needs neither torch nor pypto."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .config import Config
from .configs import CONFIGS
from .configs_fused import FUSED_CONFIGS, FusedConfig

if TYPE_CHECKING:
    import torch

PASS, FAIL, SKIP = "PRECISION_PASS", "PRECISION_FAIL", "PRECISION_SKIP"
DEVICE_VARIABLE = "TILE_FWK_DEVICE_ID"
_PREFIX = "scatter_pa_kv_cache::test_"
ALL_CONFIGS: tuple[Config | FusedConfig, ...] = (*CONFIGS, *FUSED_CONFIGS)
_WIDTH = max(len(config.name) for config in ALL_CONFIGS)


class Refusal(Exception):  # noqa: N818
    """What cannot be run at all, and why."""


class Outcome(NamedTuple):
    """What became of a config: PASS, FAIL or SKIP, and a sentence about it."""

    marker: str
    details: str


def main(argv: Sequence[str] | None = None) -> int:
    """List or run configs. Returns 0 if all that ran passed, 1 if one failed, 2 for what cannot be run at all."""
    options = _parser().parse_args(argv)
    try:
        chosen = _choose(options.names, options.k, options.slow or options.list)
        if options.list:
            _list(chosen)
            return 0
        return _run(chosen, choose_device(options.run_mode), options.seed)
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 2


def run_config(config: Config | FusedConfig, run_mode: str = "sim", seed: int = 0, device: str = "cpu") -> Outcome:
    """Call ``scatter_pa_kv_cache`` on the config's inputs and compare each cache with golden run on the same ones.

    A fused config runs its kernels instead, and what they leave is compared.
    """
    if isinstance(config, FusedConfig):
        return _run_fused(config, run_mode, seed, device)
    from . import api, checker, inputs, reference
    from .errors import SimulationError

    got = inputs.make_inputs(config, run_mode, seed, device)
    want = inputs.make_inputs(config, run_mode, seed)
    reference.run_golden(want)
    names = [f"{side}_cache" for side in config.sides]
    try:
        api.scatter_pa_kv_cache(**got, run_mode=run_mode)
    except Exception as error:  # a config that breaks must not keep the others from running
        refused = isinstance(error, SimulationError) and config.sim_refuses and config.sim_refuses in str(error)
        before = inputs.make_inputs(config, run_mode, seed, device)
        if not all(checker.same_bits(got[name], before[name]) for name in names):
            return Outcome(FAIL, f"{_one_line(error)}; and it changed the caches")
        return Outcome(SKIP if refused else FAIL, _one_line(error))
    if config.sim_refuses and run_mode == "sim":
        return Outcome(FAIL, f'sim ran it but is expected to refuse it, with the words "{config.sim_refuses}"')

    found = dict(zip(names, _on_cpu([got[name] for name in names]), strict=True))
    exact = all(checker.same_bits(found[name], want[name]) for name in names)
    if exact and config.cache_layout == "dense":
        return Outcome(PASS, "bit-exact")
    before = inputs.make_inputs(config, run_mode, seed)
    reports = {}
    for side, name in zip(config.sides, names, strict=True):
        dtype = config.side_dtype(side)
        means = checker.mean_rows(want, dtype)
        tolerance = checker.TOLERANCES[dtype]
        reports[name] = checker.compare(
            found[name], want[name], before[name], dtype=dtype, tolerance=tolerance, means=means
        )
    gaps = checker.gaps_touched(list(found.values()), [before[name] for name in names])
    passed = gaps == 0 and all(report.passed for report in reports.values())
    details = "; ".join(f"{name}: {report}" for name, report in reports.items() if not report.equal) or "bit-exact"
    return Outcome(PASS if passed else FAIL, details + (f"; gap elements touched: {gaps}" if gaps else ""))


def _run_fused(config: FusedConfig, run_mode: str, seed: int, device: str) -> Outcome:
    from . import fused

    try:
        result = fused.run(config, run_mode, seed, device)
    except Exception as error:
        return Outcome(FAIL, _one_line(error))
    return Outcome(PASS, "; ".join(str(output) for output in result.closeness if output.differ) or "bit-exact")


def _one_line(error: Exception) -> str:
    """An error's class with the first and the last line of its text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {' ... '.join(dict.fromkeys((lines[0], lines[-1])))}"


def describe(config: Config | FusedConfig, run_mode: str) -> str:
    """The sizes and dtypes of a config in one line."""
    if isinstance(config, FusedConfig):
        return str(config)
    size = f"B={len(config.lengths)} " if config.lengths else ""
    size += f"T={config.source_shape('key')[0]} " if config.row.key_rank == 3 else f"L={config.padded_length} "
    sizes = "/".join(str(config.size(side)) for side in config.sides)
    dtypes = "/".join(dict.fromkeys(config.side_dtype(side) for side in config.sides))
    blocks = f"NB={config.blocks(run_mode)} BS={config.block_size}"
    return f"{size}H={config.heads} D={sizes} {blocks} {dtypes} {config.slot_dtype}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="runner", description="Run named configs, each checked bit for bit.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"configs to run, also as {_PREFIX}NAME; default: all")
    parser.add_argument("--list", action="store_true", help="list the configs; needs neither torch nor pypto")
    parser.add_argument("-k", action="append", default=[], metavar="TEXT", help="run configs whose name has TEXT in it")
    parser.add_argument(
        "--run_mode", "--run-mode", choices=("npu", "sim"), help="default: npu if there is one, else sim"
    )
    parser.add_argument("--slow", action="store_true", help="run the slow configs too")
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs (default 0)")
    return parser


def _choose(names: Sequence[str], parts: Sequence[str], slow: bool) -> list[Config | FusedConfig]:
    """The configs asked for, in the order of the table."""
    wanted = [name.removeprefix(_PREFIX) for name in names]
    known = {config.name for config in ALL_CONFIGS}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        valid = "\n".join(f"  {config.name}" for config in ALL_CONFIGS)
        raise Refusal(f"there is no config named {', '.join(unknown)}; the configs are:\n{valid}")
    chosen = [
        config
        for config in ALL_CONFIGS
        if config.name in wanted
        or (not (wanted and not parts) and (slow or not config.slow) and (not parts or _has(config, parts)))
    ]
    if not chosen:
        raise Refusal(f"no config has {' or '.join(parts)} in its name; --list shows them all")
    return chosen


def _has(config: Config | FusedConfig, parts: Sequence[str]) -> bool:
    return any(part in config.name for part in parts)


def _list(configs: Sequence[Config | FusedConfig]) -> None:
    for config in configs:
        slow = " [slow]" if config.slow else ""
        if isinstance(config, FusedConfig):
            print(f"{config.name:{_WIDTH}}  {config.pattern}  {config}: {config.purpose}{slow}")
            continue
        blocks = f" ({config.npu_blocks} blocks on an NPU)" if config.npu_blocks else ""
        shapes = f"key {list(config.source_shape('key'))}, key_cache {list(config.cache_shape('key', 'sim'))}"
        if "value" in config.sides and config.size("value") != config.size("key"):
            shapes += f", value size {config.size('value')}"
        dtypes = "/".join(dict.fromkeys(config.side_dtype(side) for side in config.sides))
        where = f"{config.scenario} {config.module}"
        details = f"{shapes}{blocks}, {dtypes}, {config.slot_dtype}"
        print(f"{config.name:{_WIDTH}}  {where:13}  {details}: {config.purpose}{slow}")


def choose_device(run_mode: str | None) -> str:
    """The device to run on: "cpu" for sim. Raises Refusal where the run mode or the device number cannot be had."""
    if run_mode == "sim":
        return "cpu"
    import torch

    from .runtime import npu_available

    if not npu_available():
        if run_mode is None:
            return "cpu"
        raise Refusal("run mode npu: there is no NPU that torch can use; --run_mode sim runs the configs on this CPU")
    number = os.environ.get(DEVICE_VARIABLE, "0")
    if not number.isdecimal():
        raise Refusal(f"{DEVICE_VARIABLE} is {number!r}; it must be the number of an NPU, such as 0")
    getattr(torch, "npu").set_device(int(number))  # noqa: B009  # torch_npu adds it
    return f"npu:{number}"


def _on_cpu(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same views on CPU copies of the tensors' storages, gaps included."""
    copies: dict[int, Any] = {}
    for tensor in tensors:
        if tensor.device.type != "cpu":
            size = tensor.untyped_storage().nbytes() // tensor.element_size()
            copies.setdefault(tensor.untyped_storage().data_ptr(), tensor.as_strided((size,), (1,), 0).cpu())
    return [
        tensor
        if tensor.device.type == "cpu"
        else copies[tensor.untyped_storage().data_ptr()].as_strided(
            tensor.shape, tensor.stride(), tensor.storage_offset()
        )
        for tensor in tensors
    ]


def _run(configs: Sequence[Config | FusedConfig], device: str, seed: int) -> int:
    run_mode = "sim" if device == "cpu" else "npu"
    print(f"{len(configs)} configs, run mode {run_mode}, every bit of every cache compared with golden")
    fewer = [config for config in configs if isinstance(config, Config) and config.npu_blocks > config.sim_blocks]
    if run_mode == "sim" and fewer:
        names = ", ".join(f"{config.name} ({config.sim_blocks} of {config.npu_blocks})" for config in fewer)
        print(f"sim uses fewer cache blocks than npu, the block axis being dynamic, in: {names}")
    counts = {PASS: 0, FAIL: 0, SKIP: 0}
    start = time.perf_counter()
    for done, config in enumerate(configs):
        show_progress(done, len(configs), config.name)
        begin = time.perf_counter()
        marker, details = run_config(config, run_mode, seed, device)
        seconds = time.perf_counter() - begin
        counts[marker] += 1
        show_progress(None, 0, "")
        if isinstance(config, FusedConfig):
            where = f"pattern {config.pattern}"
        else:
            where = f"scenario {config.scenario} {config.module:11}"
        line = f"[{marker}] {config.name:{_WIDTH}}  {where}  {describe(config, run_mode)}  {details}, {seconds:.2f} s"
        print(line, file=sys.stderr if marker == FAIL else sys.stdout, flush=True)
    total = time.perf_counter() - start
    skipped = f", {counts[SKIP]} skipped" if counts[SKIP] else ""
    if counts[FAIL]:
        print(f"{counts[FAIL]} of {len(configs)} failed, {counts[PASS]} passed{skipped}, in {total:.1f} s")
        return 1
    print(f"All tests passed! ({counts[PASS]} configs{skipped}, in {total:.1f} s)")
    return 0


def show_progress(done: int | None, total: int, name: str) -> None:
    """Draw the bar, or erase it (None); only on a terminal."""
    if not sys.stderr.isatty():
        return
    sys.stderr.write("\r\x1b[K")
    if done is not None:
        filled = 20 * done // total
        sys.stderr.write(f"[{'#' * filled}{'.' * (20 - filled)}] {done}/{total} {name}")
    sys.stderr.flush()
