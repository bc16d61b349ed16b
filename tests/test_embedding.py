"""The README's guide to embedding, executed as it stands there."""

import re

import _checkout
import pytest
import torch

pytest.importorskip("pypto")

from scatter_pa_kv_cache import SimulationError
from scatter_pa_kv_cache.gate import launch
from scatter_pa_kv_cache.runtime import Kernel
from scatter_pa_kv_cache.sim_process import WORKER


@pytest.fixture(scope="module")
def guide(tmp_path_factory):
    """The guide's second block; its first is where the guide says that it is to be saved."""
    section = (_checkout.ROOT / "README.md").read_text().split("## Embed it in your kernel")[1].split("\n## ")[0]
    kernel, script = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert "`my_kernels.py`" in section
    folder = tmp_path_factory.mktemp("guide")
    (folder / "my_kernels.py").write_text(kernel)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        WORKER.close()  # the next one starts with this path
        yield script
    WORKER.close()


def test_the_guide_runs_and_its_kernel_is_exact(guide):
    names = {}
    exec(compile(guide, "README.md", "exec"), names)
    assert not torch.equal(names["cache"].view(-1, 256), names["expected"])  # sim leaves the tensors alone


def test_the_guide_notices_what_is_wrong(guide):
    """Golden of another scale: the launch that the guide shows raises."""
    with pytest.raises(SimulationError, match="scaled_kernel"):
        exec(compile(guide.replace("value * 0.5", "value * 0.25"), "README.md", "exec"), {})


@pytest.mark.parametrize("tokens", [1, 31, 32, 33])
def test_its_kernel_has_tails(guide, tokens):
    value, slots = torch.randn(tokens, 256), torch.randperm(256)[:tokens].int()
    cache = torch.randn(2, 128, 1, 256).bfloat16()
    expected = cache.view(-1, 256).clone()
    expected[slots.long()] = (value * 2).bfloat16()
    kernel = Kernel("my_kernels:scaled_kernel", (("scale", 2.0), ("width", 256), ("tile", 32)))
    launch(kernel, "verdicts", [value, slots[None], cache, cache.view(-1, 256)], {3: expected})
