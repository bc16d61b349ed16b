"""The named configs of the fused kernels in patterns/. Pure data: needs neither torch nor pypto."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedConfig:
    """All that determines the inputs of one run of a fused kernel; the other sizes are those of its miniature.

    pattern: module of the kernel and its golden. tokens: new tokens, of all sequences; those of a sequence (together)
    stand side by side. quantised: int8, else bf16. lengths: of the sequences after this step, random if not given; 0 is
    padding. starts: positions of the sequences' first new tokens; ratio, block_size, width: rows of a window and of a
    block, elements of a state row, of which ``overlap`` takes one half from the window before.
    """

    name: str
    pattern: str
    purpose: str
    tokens: int
    together: int = 1
    quantised: bool = True
    lengths: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    ratio: int = 4
    block_size: int = 16
    width: int = 64
    overlap: bool = False
    slow: bool = False

    def __str__(self) -> str:
        text = f"T={self.tokens}"
        if self.starts:
            text += f" B={len(self.starts)} ratio={self.ratio} W={self.width}"
            return f"{text} BS={self.block_size} float32{' overlap' if self.overlap else ''}"
        return (
            f"{text} B={self.tokens // self.together} BS={self.block_size} {'int8' if self.quantised else 'bfloat16'}"
        )


_glm = partial(FusedConfig, pattern="glm_pre_attention")
_mla = partial(FusedConfig, pattern="mla_prolog")


def _compressor(name: str, purpose: str, each: int, *starts: int, **sizes: Any) -> FusedConfig:
    tokens = each * len(starts)
    return FusedConfig(
        name=name, pattern="compressor_state", purpose=purpose, tokens=tokens, together=each, starts=starts, **sizes
    )


FUSED_CONFIGS: tuple[FusedConfig, ...] = (
    _glm(name="glm_one_token", purpose="T = 1", tokens=1),
    _glm(name="glm_tail_7", purpose="no whole tile", tokens=7),
    _glm(name="glm_tile_8", purpose="one whole tile", tokens=8, lengths=(1, 15, 16, 17, 32, 33, 48, 2)),
    _glm(name="glm_tail_9", purpose="a tile and a tail of one", tokens=9),
    _glm(name="glm_two_tiles", purpose="two tiles", tokens=16, slow=True),
    _glm(name="glm_five_tiles", purpose="five tiles", tokens=40, slow=True),
    _glm(name="glm_two_spans", purpose="more rows than one span of four blocks", tokens=3, lengths=(64, 65, 128)),
    _glm(name="glm_two_together", purpose="two tokens of a sequence, a causal tail", tokens=10, together=2),
    _glm(name="glm_padding", purpose="the last token is padding: no slot, no rows", tokens=3, lengths=(5, 16, 0)),
    _glm(name="glm_read_back", purpose="one row a sequence: attention is its value row", tokens=9, lengths=(1,) * 9),
    _glm(name="glm_bf16", purpose="a bf16 linear", tokens=9, quantised=False),
    _mla(name="mla_one_token", purpose="T = 1", tokens=1),
    _mla(name="mla_tail_5", purpose="no whole tile", tokens=5),
    _mla(name="mla_tile_8", purpose="one whole tile", tokens=8),
    _mla(name="mla_tail_9", purpose="a tile and a tail of one", tokens=9),
    _mla(name="mla_five_tiles", purpose="five tiles", tokens=40),
    _mla(name="mla_bf16_one_token", purpose="bf16, T = 1", tokens=1, quantised=False),
    _mla(name="mla_bf16_tail_9", purpose="bf16, a tile and a tail of one", tokens=9, quantised=False),
    _mla(name="mla_bf16_five_tiles", purpose="bf16, five tiles", tokens=40, quantised=False),
    _compressor("compressor_one_token", "one new token", 1, 15, 14, 0, 7),
    _compressor("compressor_overshoot", "windows are passed, blocks too", 3, 15, 14, 0, 7),
    _compressor("compressor_overlap", "with the window before, where there is one", 4, 15, 30, 0, 2, overlap=True),
    _compressor("compressor_block_4", "a window is a block", 3, 3, 2, 0, 9, block_size=4, width=16, slow=True),
    _compressor("compressor_ratio_16", "a window is a block of 16", 4, 15, 14, 0, 3, ratio=16),
    _compressor("compressor_ratio_128", "windows of 128", 4, 125, 124, 300, ratio=128, block_size=128),
    _compressor(
        "compressor_wide",
        "128 columns of 256, half of which are rotated",
        2,
        *(127, 126, 5),
        block_size=128,
        width=256,
        overlap=True,
        slow=True,
    ),
)
