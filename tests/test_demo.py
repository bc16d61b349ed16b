"""The demo's model: a paged cache gives the dense cache's logits, and a cache written wrong does not."""

import _checkout  # noqa: F401
import pytest
import torch

pytest.importorskip("transformers")

from scatter_pa_kv_cache import demo, paged_cache
from scatter_pa_kv_cache.golden import norm


def golden(spoil):
    """A writer in the operator's place, whose slots ``spoil`` changes."""

    def write(key, key_cache, index, value, value_cache):
        norm.reference(key, key_cache, spoil(index.slot_mapping.clone()), value, value_cache)

    return write


def test_every_logit_is_the_dense_caches():
    reports = []
    outcome = demo.run(lambda done, total, what: reports.append((done, total)))
    assert outcome.passed
    tokens = sum(demo.PROMPTS) + demo.LATE_PROMPT + 3 * demo.STEPS + 3 * demo.STEPS
    assert outcome.tokens == tokens
    assert (outcome.logits, outcome.differing) == (tokens * 128, 0)
    assert outcome.reused <= outcome.evicted
    assert outcome.reused
    assert reports == [(done, len(reports)) for done in range(len(reports))]


def lost(slots):
    slots[-1] = -1
    return slots


def shifted(slots):
    return torch.where(slots >= 0, (slots + 1) % (demo.BLOCKS * demo.BLOCK_SIZE), slots)


@pytest.mark.parametrize("spoil", [lost, shifted])
def test_wrong_writes_show(monkeypatch, spoil):
    monkeypatch.setattr(paged_cache, "scatter_pa_kv_cache", golden(spoil))
    outcome = demo.run()
    assert not outcome.passed
    assert outcome.differing


@pytest.mark.parametrize(("differing", "code", "verdict"), [(0, 0, "PASS"), (3, 1, "FAIL")])
def test_main_tells_the_verdict(monkeypatch, capsys, differing, code, verdict):
    outcome = demo.Outcome(logits=10, differing=differing, tokens=5, blocks=4, evicted={1, 2}, reused={2})
    monkeypatch.setattr(demo, "run", lambda report: outcome)
    assert demo.main([]) == code
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == verdict
    assert f"{10 - differing} of 10 logits equal" in printed


def test_main_without_transformers(monkeypatch, capsys):
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: None)
    assert demo.main([]) == 2
    assert "pip install" in capsys.readouterr().err
