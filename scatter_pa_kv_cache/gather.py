"""The public call that reads sequences back from a paged cache."""

from __future__ import annotations

import torch
from torch import Tensor

from .gather_plan import make_gather_plan
from .gather_rules import accept, normalise
from .gather_rules import check_data as check_index_data
from .runtime import choose_run_mode


def gather_pa_kv_cache(
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    seq_offset: Tensor | None = None,
    cache_mode: str | None = "Norm",
    is_seq_lens_cumsum: bool = True,
    run_mode: str | None = None,
    soc: str | None = None,
    check_data: bool | None = None,
) -> None:
    """Read the keys and values of whole sequences out of a paged cache, in place into ``key`` and ``value``.

    The mirror of :func:`scatter_pa_kv_cache`: token t of sequence b is read from place ``t % BS`` of block
    ``block_tables[b, c]``, ``c = seq_offset[b] // BS + t // BS``; the sequences follow one another in the result.
    B sequences, W table columns, T rows of the result, N heads, L elements in 32 bytes.

    Args:
        key_cache: Norm [NB, BS, N, Dk]; PA_NZ [NB, N*Dk/L, BS, L]. May be strided; no cache is ever copied.
        value_cache: as key_cache with Dv; its NB may be another, and only blocks that both have are read.
        block_tables: [B, W] int32 or int64. A negative entry, one past the last block, and a column past W stand for
            a block of zeros.
        seq_lens: [B + 1] sums of the lengths that begin with 0, or [B] lengths; of block_tables' dtype.
        key, value: written; Norm [T, N, Dk], [T, N, Dv]; PA_NZ [T, N*Dk], [T, N*Dv]. Where the sequences have more
            than T tokens the last ones are dropped; where they have fewer the rows after them keep their content.
        seq_offset: [B] tokens to skip in front of each sequence, whole blocks of them only; of block_tables' dtype.
        cache_mode: "Norm" or "PA_NZ". is_seq_lens_cumsum: are the lengths given as sums?
        run_mode: "npu", "sim", or None for the tensors' device.
        soc: "A2", "A3" or "950" applies that product's rules; None: the union of all.
        check_data: read seq_lens and seq_offset and apply the rules on their content; None: in sim yes, on an NPU no.

    Returns None. An empty cache or result is success and does nothing.

    Raises:
        ScatterPaKvCacheError: the call is refused; ``.code`` and ``.rule`` (R1 to R18) say why. Nothing is written.
        SimulationError: in sim, a verdict was not PASS or there is no room. Nothing is written.

    The rules are those of CANN's operator GatherPaKvCache. The npu mode was never run by this project.
    """
    tensors = (key_cache, value_cache, block_tables, seq_lens, key, value, seq_offset)
    call = normalise(tensors, cache_mode, is_seq_lens_cumsum, soc)
    if not accept(call.spec):
        return
    mode = choose_run_mode(run_mode, key)
    if mode == "sim" if check_data is None else check_data:
        check_index_data(call)
    plan = make_gather_plan(call)
    if mode == "npu":
        plan.launch_on_npu()
        return
    from . import gather_sim  # a host with an NPU never loads it

    with torch.device("cpu"):  # whatever the program's default is
        gather_sim.run(plan)
