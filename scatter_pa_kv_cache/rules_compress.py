"""Rules K and G: the shapes of the compressed scenarios, K for a 3-D key (4 and 5), G for a 4-D key (3).

Section 6 of the operator's specification; the shapes are those of its section 2.1.
"""

from __future__ import annotations

from .errors import TilingError
from .rule_types import Call, Rule, shape
from .scenarios import A2_A3

_REDUCING = ("Rope", "Omni")


def _lengths_given(call: Call) -> str | None:
    for name in ("compress_lens", "seq_lens"):
        if getattr(call.spec, name) is None:
            needs = f'scatter_mode "{call.scatter_mode}"' if call.key.rank == 3 else "a 4-D key"
            return f"{name} is None; {needs} must have it"
    return None


def _offset_given(call: Call) -> str | None:
    if call.spec.compress_seq_offset is not None:
        return None
    return f'compress_seq_offset is None; scatter_mode "{call.scatter_mode}" must have it'


def _lengths_rank(call: Call) -> str | None:
    for name, tensor in (("compress_lens", call.spec.compress_lens), ("seq_lens", call.spec.seq_lens)):
        if tensor is not None and tensor.rank != 1:
            return f"{name} has shape {shape(tensor)}; with a 3-D key it must have rank 1"
    return None


def _offset_rank(call: Call) -> str | None:
    tensor = call.spec.compress_seq_offset
    if tensor is None or tensor.rank == 1:
        return None
    return f"compress_seq_offset has shape {shape(tensor)}; it must have rank 1"


def _one_cache_head(call: Call) -> str | None:
    if call.key_cache.shape[2] == 1:
        return None
    return f"key_cache has shape {shape(call.key_cache)}; its dim 2 (as value_cache's) must be 1 when compressed"


def _task_lengths(call: Call) -> str | None:
    tasks = call.heads * call.batches
    named = [("slot_mapping", call.slot_mapping), ("compress_lens", call.spec.compress_lens)]
    if call.scatter_mode in _REDUCING:
        named.append(("compress_seq_offset", call.spec.compress_seq_offset))
    for name, tensor in named:
        if tensor is not None and tensor.shape[0] != tasks:
            return (
                f"{name} has {tensor.shape[0]} entries; it must have one per batch and head, "
                f"{call.batches} * {call.heads} = {tasks}"
            )
    return None


def _half(call: Call) -> str | None:
    dtypes = call.scenario.dtypes[call.spec.soc] if call.scenario and call.spec.soc else ()
    if call.key.dtype in dtypes:
        return None
    return f"key is {call.key.dtype}; {call.scatter_mode} on {call.spec.soc} must have {' or '.join(dtypes)}"


def _same_planes(call: Call) -> str | None:
    if call.value.shape[:3] == call.key.shape[:3]:
        return None
    return f"value has shape {shape(call.value)}; its first three dims must be key's, {list(call.key.shape[:3])}"


def _slots_per_task(call: Call) -> str | None:
    wanted = (call.batches, call.heads)
    if call.slot_mapping.shape == wanted:
        return None
    return f"slot_mapping has shape {shape(call.slot_mapping)}; with a 4-D key it must be [B, H] = {list(wanted)}"


def _windows_per_task(call: Call) -> str | None:
    tensor, wanted = call.spec.compress_lens, (call.batches, call.heads)
    if tensor is None or tensor.shape == wanted:
        return None
    if call.scatter_mode != "Alibi":
        return f"compress_lens has shape {shape(tensor)}; with a 4-D key it must be [B, H] = {list(wanted)}"
    tasks = call.batches * call.heads
    if tensor.rank in (1, 2) and tensor.elements == tasks:
        return None
    return f"compress_lens has shape {shape(tensor)}; it must have B*H = {tasks} elements and rank 1 or 2"


def _length_per_batch(call: Call) -> str | None:
    tensor = call.spec.seq_lens
    if tensor is None or tensor.shape == (call.batches,):
        return None
    return f"seq_lens has shape {shape(tensor)}; with a 4-D key it must be [B] = [{call.batches}]"


def _offset_per_task(call: Call) -> str | None:
    tensor, tasks = call.spec.compress_seq_offset, call.batches * call.heads
    if tensor is None or tensor.shape == (tasks,):
        return None
    return f"compress_seq_offset has shape {shape(tensor)}; with a 4-D key it must be [B*H] = [{tasks}]"


def _key_cache_4d(call: Call) -> str | None:
    head_size = call.key.shape[3]
    if call.key_cache.rank == 4 and call.key_cache.shape[2:] == (1, head_size):
        return None
    return f"key_cache has shape {shape(call.key_cache)}; with a 4-D key it must be [NB, BS, 1, {head_size}]"


def _value_cache_4d(call: Call) -> str | None:
    wanted = (*call.key_cache.shape[:2], 1, call.value.shape[3])
    if call.value_cache.shape == wanted:
        return None
    return f"value_cache has shape {shape(call.value_cache)}; next to this key and key_cache it must be {list(wanted)}"


_T = TilingError
COMPRESS_RULES: tuple[Rule[Call], ...] = (
    Rule("K1", _T, "compress_lens and seq_lens are given", _lengths_given, (4, 5)),
    Rule("K2", _T, "compress_seq_offset is given", _offset_given, (5,)),
    Rule("K3", _T, "compress_lens and seq_lens have rank 1", _lengths_rank, (4, 5)),
    Rule("K4", _T, "compress_seq_offset has rank 1", _offset_rank, (5,)),
    Rule("K5", _T, "cache dim 2 is 1", _one_cache_head, (4, 5)),
    Rule("K6", _T, "slots, windows and offsets: one per batch and head", _task_lengths, (4, 5)),
    Rule("K7", _T, "A2/A3: Rope and Omni are float16 or bfloat16", _half, (5,), products=A2_A3),
    Rule("G1", _T, "compress_lens and seq_lens are given", _lengths_given, (3,)),
    Rule("G2", _T, "Rope and Omni: compress_seq_offset is given", _offset_given, (3,), _REDUCING),
    Rule("G3", _T, "key and value agree in dims 0 to 2", _same_planes, (3,)),
    Rule("G4", _T, "slot_mapping is [B, H]", _slots_per_task, (3,)),
    Rule("G5", _T, "compress_lens is [B, H]; Alibi: B*H elements of rank 1 or 2", _windows_per_task, (3,)),
    Rule("G6", _T, "seq_lens is [B]", _length_per_batch, (3,)),
    Rule("G7", _T, "Rope and Omni: compress_seq_offset is [B*H]", _offset_per_task, (3,), _REDUCING),
    Rule("G8", _T, "key_cache is [NB, BS, 1, Dk]", _key_cache_4d, (3,)),
    Rule("G9", _T, "value_cache is [NB, BS, 1, Dv] with key_cache's NB and BS", _value_cache_4d, (3,)),
)
