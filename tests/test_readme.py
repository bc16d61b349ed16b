"""The README's Python runs as it stands; test_embedding has the section that this leaves out."""

import re

import _checkout
import pytest

SECTIONS = re.split(r"^## ", (_checkout.ROOT / "README.md").read_text(), flags=re.MULTILINE)
BLOCKS = [
    pytest.param(block, id=f"{section.splitlines()[0]} {number}")
    for section in SECTIONS
    if not section.startswith("Embed it in your kernel")
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_python_blocks(block):
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
