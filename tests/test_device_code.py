"""The AICore source that PyPTO emits for every kernel: how many scatters, and what feeds their index.

Two faults of a device show in no check on a CPU: an index of more than one row writes wrong rows, and an index that
vector operations compute is not waited for. Here both are read off the source.
"""

import re

import _checkout  # noqa: F401
import pytest
from emitted import emitted

# kernel -> scatters in all its sources: one for each cache and path of the control flow that writes
SCATTERS = {
    "norm": 2,
    "norm merged": 2,
    "int64": 2,
    "nct": 2,
    "nz4": 2,
    "nhsd": 2,
    "siso": 1,
    "alibi": 2,
    "omni": 2,
    "rope": 6,
    "four_d": 6,
    "four_d_alibi": 2,
    "rope float8_e4m3fn": 6,
    "rope float8_e5m2": 6,
    "rope hifloat8": 6,
    "rope int32": 6,
    "rope uint32": 6,
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return emitted("device_code.py", tmp_path_factory.mktemp("device_code"))


@pytest.mark.parametrize("kernel", SCATTERS)
def test_number_of_scatters(sources: dict[str, list[str]], kernel: str) -> None:
    assert sum(source.count("TIndexOutcast<") for source in sources[kernel]) == SCATTERS[kernel]


@pytest.mark.parametrize("kernel", SCATTERS)
def test_every_index_is_one_row_loaded_from_a_parameter(sources: dict[str, list[str]], kernel: str) -> None:
    for source in sources[kernel]:
        for index in re.findall(r"TIndexOutcast<[^>]*>\(\w+, \w+, (\w+),", source):
            kind = re.search(rf"(\w+) {index}\(", source)
            assert kind is not None
            shape = re.search(rf"using {kind[1]} = TileTensor<\w+, LocalLayout2Dim<(\d+), \d+>, Hardware::UB>", source)
            assert shape is not None
            assert shape[1] == "1", "an index of several rows"
            writers = re.findall(rf"(\w+)(?:<[^>]*>)?\({index}, (\w+)", source)
            assert [operation for operation, _ in writers] == ["TLoad"], "the index is computed"
            assert re.search(rf"{writers[0][1]}\(\(__gm__ int(32|64)_t\*\)GET_PARAM_ADDR", source)


@pytest.mark.parametrize("kernel", SCATTERS)
def test_no_cache_is_copied(sources: dict[str, list[str]], kernel: str) -> None:
    """What is stored to global memory beside the scatters are the sums of a window that spans tiles."""
    for source in sources[kernel]:
        stores = source.count("TStore(")
        assert stores == 0 or "TENSOR_window" in source
