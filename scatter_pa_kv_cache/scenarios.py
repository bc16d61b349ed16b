"""THE table: one row per argument scenario of ScatterPaKvCache. Needs neither torch nor pypto.

Dispatch, the runner's list, the tests, the benchmarks and the README table all read it.
"""

from __future__ import annotations

from dataclasses import dataclass

from .dtypes import A2_A3_DTYPES, ALL_DTYPES, FLOAT4

A2_A3 = ("A2", "A3")
PRODUCTS = ("A2", "A3", "950")
# the tensors of a call, in the order of its description
TENSORS = (
    "key",
    "key_cache",
    "slot_mapping",
    "value",
    "value_cache",
    "compress_lens",
    "compress_seq_offset",
    "seq_lens",
)
_HALF = ("float16", "bfloat16")
_NOT_FLOAT4 = tuple(name for name in ALL_DTYPES if name not in FLOAT4)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the table.

    ``modules`` maps each scatter mode to the name that the kernel and its golden share in ``kernels/`` and ``golden/``;
    ``dtypes`` lists, for A2/A3 and for the 950, the logical dtypes of keys, values and caches.
    """

    number: int
    title: str
    cache_mode: str
    key_rank: int
    modules: dict[str, str]
    cache_shape: str
    products: tuple[str, ...]
    dtypes: dict[str, tuple[str, ...]]

    @property
    def scatter_modes(self) -> tuple[str, ...]:
        return tuple(self.modules)


def _dtypes(a2_a3: tuple[str, ...] = (), ascend_950: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    return {"A2": a2_a3, "A3": a2_a3, "950": ascend_950}


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        number=1,
        title="PA_NZ layout",
        cache_mode="PA_NZ",
        key_rank=3,
        modules={"None": "pa_nz"},
        cache_shape="[NB, H*D/L, BS, L] or [NB, H, D/L, BS, L]",
        products=PRODUCTS,
        dtypes=_dtypes(A2_A3_DTYPES, ALL_DTYPES),
    ),
    Scenario(
        number=2,
        title="Norm layout, plain or from a strided buffer (Nct)",
        cache_mode="Norm",
        key_rank=3,
        modules={"None": "norm", "Nct": "nct"},
        cache_shape="[NB, BS, H, D]",
        products=PRODUCTS,
        dtypes=_dtypes(A2_A3_DTYPES, ALL_DTYPES),
    ),
    Scenario(
        number=3,
        title="4-D compressed (Rope, Omni or Alibi)",
        cache_mode="Norm",
        key_rank=4,
        modules={"Rope": "compress_4d", "Omni": "compress_4d", "Alibi": "compress_4d"},
        cache_shape="[NB, BS, 1, D]",
        products=("950",),
        dtypes=_dtypes((), _NOT_FLOAT4),
    ),
    Scenario(
        number=4,
        title="Alibi: the newest tokens of each head",
        cache_mode="Norm",
        key_rank=3,
        modules={"Alibi": "alibi"},
        cache_shape="[NB, BS, 1, D]",
        products=PRODUCTS,
        dtypes=_dtypes(A2_A3_DTYPES, _NOT_FLOAT4),
    ),
    Scenario(
        number=5,
        title="Rope / Omni: a window of each head averaged or dropped",
        cache_mode="Norm",
        key_rank=3,
        modules={"Rope": "rope", "Omni": "omni"},
        cache_shape="[NB, BS, 1, D]",
        products=PRODUCTS,
        dtypes=_dtypes(_HALF, _NOT_FLOAT4),
    ),
    Scenario(
        number=6,
        title="key only, plain or from a strided buffer (Nct)",
        cache_mode="Norm",
        key_rank=3,
        modules={"None": "key_only", "Nct": "key_only"},
        cache_shape="[NB, BS, H, D]",
        products=A2_A3,
        dtypes=_dtypes(A2_A3_DTYPES, ()),
    ),
    Scenario(
        number=7,
        title="NHSD layout",
        cache_mode="Norm",
        key_rank=3,
        modules={"NHSD": "nhsd"},
        cache_shape="[NB, H, BS, D]",
        products=A2_A3,
        dtypes=_dtypes(A2_A3_DTYPES, ()),
    ),
)

COMPRESSED = (3, 4, 5)
"""The scenarios that name a slot for each task, one for each (sequence, head); the others name one for each token."""


def scenario(number: int) -> Scenario:
    """The row of scenario ``number`` (1 to 7)."""
    return SCENARIOS[number - 1]


def scenario_table() -> str:
    """The scenarios as a table in Markdown, as the README shows it."""
    lines = [
        "| # | scenario | cache_mode, scatter_mode | caches | products | dtypes | kernel and golden | status |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in SCENARIOS:
        modules = dict.fromkeys(row.modules.values())
        cells = (
            str(row.number),
            row.title,
            f"{row.cache_mode}; {', '.join(row.scatter_modes)}",
            f"`{row.cache_shape}`",
            ", ".join(row.products),
            _dtype_cell(row),
            ", ".join(f"`{module}`" for module in modules),
            f"{_exactness(row)} in sim; never run on an NPU",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _exactness(row: Scenario) -> str:
    return "copies bit-exact, means within their bound," if "Rope" in row.modules else "bit-exact"


def _dtype_cell(row: Scenario) -> str:
    families = {"A2/A3": row.dtypes["A2"], "950": row.dtypes["950"]}
    return "; ".join(f"{name}: {_dtype_names(dtypes)}" for name, dtypes in families.items() if dtypes)


def _dtype_names(dtypes: tuple[str, ...]) -> str:
    if dtypes == ALL_DTYPES:
        return "all"
    return "all but float4" if dtypes == _NOT_FLOAT4 else ", ".join(dtypes)
