"""The README in Chinese says what the English one says: the same sections, tables and code."""

import re

import _checkout

ENGLISH, CHINESE = ((_checkout.ROOT / name).read_text() for name in ("README.md", "README_zh.md"))


def tables(text: str) -> list[str]:
    return re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)


def code(text: str) -> list[str]:
    return re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL)


def test_the_same_tables_and_code() -> None:
    assert tables(CHINESE) == tables(ENGLISH)
    assert code(CHINESE) == code(ENGLISH)


def test_the_same_sections() -> None:
    levels = [re.findall(r"^#+(?= )", text, re.MULTILINE) for text in (CHINESE, ENGLISH)]
    assert levels[0] == levels[1]
    links = [sorted(re.findall(r"\]\(([^)]*)\)", text)) for text in (CHINESE, ENGLISH)]
    assert links[0] == links[1]
