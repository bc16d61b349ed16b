"""The AICore source that PyPTO emits for the gather kernel: tiles are loaded from a cache and stored, and no more."""

import _checkout  # noqa: F401
import pytest
from emitted import emitted

pytest.importorskip("pypto")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return emitted("gather_device_code.py", tmp_path_factory.mktemp("gather_device_code"))


@pytest.mark.parametrize(
    ("mode", "loads_and_stores"),
    [("Norm", [(1, 1)] * 4), ("PA_NZ", [(1, 4), (1, 8), (4, 4), (8, 8)])],
    ids=["Norm", "PA_NZ"],
)
def test_tiles_are_moved_and_nothing_is_gathered_or_scattered(
    sources: dict[str, list[str]], mode: str, loads_and_stores: list[tuple[int, int]]
) -> None:
    """Key and value have a program each for a block's rows and for zeros, which are loaded once for all pieces."""
    found = [(source.count("TLoad("), source.count("TStore(")) for source in sources[mode]]
    assert sorted(found) == loads_and_stores
    for source in sources[mode]:
        assert "TIndexOutcast" not in source
        assert "TGather" not in source
        assert "PIPE_V" not in source


@pytest.mark.parametrize("mode", ["Norm", "PA_NZ"])
def test_rows_and_valid_rows_are_read_at_run_time(sources: dict[str, list[str]], mode: str) -> None:
    for source in sources[mode]:
        assert "VALID_SHAPE" in source
        for store in [line for line in source.splitlines() if line.startswith("TStore(")]:
            assert "Coord2Dim((RUNTIME_COA_GET_PARAM_OFFSET_MAYBE_CONST(0, -1," in store
