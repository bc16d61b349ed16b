"""What a named config of the runner and the tests says. Pure data: needs neither torch nor pypto."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle

from .dtypes import FLOAT4, elements_in_32_bytes
from .scenarios import Scenario, scenario

SLOTS = ("random", "contiguous", "aligned", "padded", "all_padding")
SOURCE_LAYOUTS = ("dense", "fused_qkv", "transposed")
CACHE_LAYOUTS = ("dense", "interleaved", "padded_blocks", "packed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All that determines the inputs of one call; shapes are those of the operator's specification, section 2.1.

    Sizes are in logical elements. ``value_size`` 0 and ``value_dtype`` "" mean the key's; ``npu_blocks`` 0 means
    ``sim_blocks``. ``tokens`` is T of scenarios 1, 2, 6 and 7; the compressed ones have ``lengths`` (seq_lens; with a
    4-D key padded to ``padded_length``) and ``windows``, (compress_lens, compress_seq_offset) of the tasks, repeated.

    slots: "random" (no repeats); "contiguous" (from 0 on); "aligned" (each task begins a block); "padded" (random,
    with -1 first, in the middle and last); "all_padding".
    source_layout: "dense"; "fused_qkv" (key and value in one buffer: views of it, or with Nct the buffer itself);
    "transposed" (tokens inside heads in memory).
    cache_layout: "dense"; "interleaved" (key and value blocks alternate in one tensor); "padded_blocks" (a gap after
    each block); "packed" (key and value share the last axis of one tensor).
    sim_refuses: words of the SimulationError that sim answers with, where its interpreter cannot compute the config.
    """

    name: str
    scenario: int
    purpose: str
    heads: int
    key_size: int
    block_size: int
    sim_blocks: int
    npu_blocks: int = 0
    tokens: int = 0
    lengths: tuple[int, ...] = ()
    padded_length: int = 0
    windows: tuple[tuple[int, int], ...] = ()
    value_size: int = 0
    dtype: str = "bfloat16"
    value_dtype: str = ""
    slot_dtype: str = "int32"
    scatter_mode: str = "None"
    nz_rank: int = 4
    strides: tuple[int, int] = (1, 1)
    offsets: tuple[int, int] = (0, 0)
    slots: str = "random"
    source_layout: str = "dense"
    cache_layout: str = "dense"
    slow: bool = False
    sim_refuses: str = ""

    @property
    def row(self) -> Scenario:
        """The scenario's row of the table."""
        return scenario(self.scenario)

    @property
    def module(self) -> str:
        """The name that the kernel and its golden share."""
        return self.row.modules[self.scatter_mode]

    @property
    def sides(self) -> tuple[str, ...]:
        return ("key",) if self.scenario == 6 else ("key", "value")

    @property
    def averages(self) -> bool:
        """Does it write means, and so more than copies?"""
        return self.scatter_mode == "Rope"

    def blocks(self, run_mode: str) -> int:
        return self.npu_blocks if run_mode == "npu" and self.npu_blocks else self.sim_blocks

    def size(self, side: str) -> int:
        return self.value_size if side == "value" and self.value_size else self.key_size

    def side_dtype(self, side: str) -> str:
        return self.value_dtype if side == "value" and self.value_dtype else self.dtype

    def source_shape(self, side: str) -> tuple[int, ...]:
        """[T, H, D], or [B, L, H, D] of a 4-D key."""
        if self.row.key_rank == 4:
            return (len(self.lengths), self.padded_length, self.heads, self.size(side))
        return (sum(self.lengths) if self.lengths else self.tokens, self.heads, self.size(side))

    def cache_shape(self, side: str, run_mode: str) -> tuple[int, ...]:
        blocks, size, block_size = self.blocks(run_mode), self.size(side), self.block_size
        if self.row.cache_mode == "PA_NZ":
            lanes = elements_in_32_bytes(self.side_dtype(side))
            pieces = (self.heads, size // lanes) if self.nz_rank == 5 else (self.heads * size // lanes,)
            return (blocks, *pieces, block_size, lanes)
        if self.scatter_mode == "NHSD":
            return (blocks, self.heads, block_size, size)
        return (blocks, block_size, 1 if self.lengths else self.heads, size)

    def stored(self, shape: tuple[int, ...], side: str) -> tuple[int, ...]:
        """The shape in storage elements: 4-bit types are two elements a byte."""
        return (*shape[:-1], shape[-1] // 2) if self.side_dtype(side) in FLOAT4 else shape

    def tasks(self) -> tuple[tuple[int, int, int], ...]:
        """(length, window, offset) of every (sequence, head), in the order of slot_mapping."""
        lengths = [length for length in self.lengths for _ in range(self.heads)]
        return tuple((length, *window) for length, window in zip(lengths, cycle(self.windows), strict=False))

    def rows_written(self) -> tuple[int, ...]:
        """Cache rows that each task writes (section 4.3 and 4.4 of the operator's specification)."""
        if self.scatter_mode == "Alibi":
            return tuple(window for _, window, _ in self.tasks())
        return tuple(
            length - window + self.averages if window and offset not in (-1, length) else length
            for length, window, offset in self.tasks()
        )
