"""The demo: a small Llama of random weights decodes with a paged cache beside the same model with a dense one."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .runner import show_progress as progress

BLOCKS, BLOCK_SIZE = 13, 4
PROMPTS = (3, 9, 6)  # tokens of the sequences that begin
EVICTED = 1  # of those
LATE_PROMPT = 7
STEPS = 6  # before the eviction, and after it
_VOCABULARY = 128


@dataclass
class Outcome:
    """What the demo saw. reused: blocks of the evicted sequence that the late one got."""

    logits: int = 0
    differing: int = 0
    tokens: int = 0
    blocks: int = 0
    evicted: set[int] = field(default_factory=set)
    reused: set[int] = field(default_factory=set)

    @property
    def passed(self) -> bool:
        return self.logits > 0 and not self.differing and bool(self.reused)


class Batch:
    """Sequences that decode together, once with a dense and once with a paged cache."""

    def __init__(self, model: Any, pool: Any, prompts: Sequence[Tensor], outcome: Outcome) -> None:
        from transformers import DynamicCache

        from .paged_cache import PagedCache

        longest = max(map(len, prompts))
        padding = [longest - len(prompt) for prompt in prompts]
        self.model, self.outcome = model, outcome
        self.dense, self.paged = DynamicCache(config=model.config), PagedCache(pool, padding)
        self.mask = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in padding])
        self.next = torch.stack([torch.nn.functional.pad(prompt, (longest - len(prompt), 0)) for prompt in prompts])

    def step(self) -> None:
        """Feed the next tokens to the model with each cache, compare all logits, and choose greedily."""
        new = self.next.shape[1]
        places = (self.mask.cumsum(1) - 1).clamp(min=0)[:, -new:]
        inputs = {"input_ids": self.next, "attention_mask": self.mask, "position_ids": places}
        with torch.no_grad():
            dense, paged = (self.model(**inputs, cache=cache).logits for cache in (self.dense, self.paged))
        live = self.mask[:, -new:].bool()
        differs = dense[live].view(torch.int16) != paged[live].view(torch.int16)
        self.outcome.logits += differs.numel()
        self.outcome.differing += int(differs.sum())
        self.outcome.tokens += int(live.sum())
        self.next = dense[:, -1:].argmax(-1)
        self.mask = torch.nn.functional.pad(self.mask, (0, 1), value=1)

    def keep(self, sequences: Sequence[int]) -> None:
        """Evict the others."""
        kept = torch.tensor(sequences)
        for cache in (self.dense, self.paged):
            cache.batch_select_indices(kept)
        self.next, self.mask = self.next[kept], self.mask[kept]


def run(report: Callable[[int, int, str], None] = lambda done, total, what: None) -> Outcome:
    """Decode a ragged batch, evict a sequence, give its blocks to a late one, and decode both batches by turns."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from .paged_cache import BlockPool

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    heads, head_size = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
    pool = BlockPool(
        layers=config.num_hidden_layers,
        blocks=BLOCKS,
        block_size=BLOCK_SIZE,
        heads=heads,
        head_size=head_size,
        dtype=torch.bfloat16,
    )
    prompts = [torch.randint(0, _VOCABULARY, (length,)) for length in (*PROMPTS, LATE_PROMPT)]
    outcome, total = Outcome(blocks=BLOCKS), 3 * STEPS + 2
    early = Batch(model, pool, prompts[:-1], outcome)
    for done in range(STEPS + 1):
        report(done, total, f"{len(PROMPTS)} sequences, {BLOCKS - len(pool.free)} of {BLOCKS} blocks in use")
        early.step()
    outcome.evicted = set(early.paged.blocks[EVICTED])
    early.keep([number for number in range(len(PROMPTS)) if number != EVICTED])
    late = Batch(model, pool, prompts[-1:], outcome)
    for done in range(STEPS + 1, total):
        report(done, total, f"one evicted, one begun, {BLOCKS - len(pool.free)} of {BLOCKS} blocks in use")
        (late if (done - STEPS) % 2 else early).step()
    outcome.reused = outcome.evicted & set(late.paged.blocks[0])
    return outcome


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; 0 where every logit is equal, 1 where not, 2 where transformers is missing."""
    argparse.ArgumentParser(prog="python -m scatter_pa_kv_cache demo", description=__doc__).parse_args(argv)
    if importlib.util.find_spec("transformers") is None:
        print("The demo needs transformers: pip install 'scatter-pa-kv-cache[dev]'", file=sys.stderr)
        return 2
    begin = time.perf_counter()
    outcome = run(progress)
    progress(None, 0, "")
    print(
        f"A Llama of 2 layers and random weights: {outcome.tokens} tokens of {len(PROMPTS) + 1} sequences in "
        f"{outcome.blocks} blocks of {BLOCK_SIZE}.\n"
        f"One was evicted from blocks {sorted(outcome.evicted)}; the next one was given {sorted(outcome.reused)}.\n"
        f"{outcome.logits - outcome.differing} of {outcome.logits} logits equal those of the dense cache bit for bit, "
        f"in {time.perf_counter() - begin:.1f} s."
    )
    print("PASS" if outcome.passed else "FAIL")
    return 0 if outcome.passed else 1
