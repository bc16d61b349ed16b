"""What a call is described as, and what of its memory the description tells."""

import _checkout  # noqa: F401
import torch
from rule_cases import float4, nct, norm, siso

from scatter_pa_kv_cache.arguments import CallSpec, TensorSpec, normalise


def test_a_spec_is_a_key() -> None:
    first, second = (normalise(**norm()).spec for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    assert hash(first) != hash(normalise(**nct()).spec)


def test_elements_are_the_product_of_the_shape() -> None:
    spec = TensorSpec((2, 3, 4), "int32")
    assert (spec.rank, spec.elements, TensorSpec((), "int32").elements) == (3, 24, 1)


def test_a_spec_of_five_tensors_has_the_defaults_of_a_call() -> None:
    spec = normalise(**norm()).spec
    assert CallSpec(*spec[:5]) == spec
    assert (spec.cache_mode, spec.scatter_mode, spec.strides, spec.offsets, spec.soc) == (
        "Norm",
        "None",
        (1, 1),
        (0, 0),
        None,
    )


def test_key_only_is_one_description() -> None:
    """None for value and value_cache is what rank-0 tensors of key's dtype are."""
    assert normalise(**norm() | {"value": None, "value_cache": None}).spec == normalise(**siso()).spec


def test_reachable_counts_what_nct_may_read() -> None:
    """From the first element to the end of the storage, and of key and value alone: 24 of 40 and 36 of 36."""
    case = nct() | {"key": torch.zeros(40).half()[16:].view(3, 2, 4)}
    spec = normalise(**case).spec
    assert spec[:2] == (TensorSpec((3, 2, 4), "float16", 24), TensorSpec((2, 4, 2, 4), "float16", 0))
    assert spec[3:5] == (TensorSpec((3, 2, 6), "float16", 36), TensorSpec((2, 4, 2, 6), "float16", 0))
    dense = normalise(**case | {"scatter_mode": "None"}).spec
    assert dense[:2] == (TensorSpec((3, 2, 4), "float16", 0), TensorSpec((2, 4, 2, 4), "float16", 0))


def test_packed_elements_are_counted_twice_the_bytes() -> None:
    spec = normalise(**float4(nct(), "float4_e2m1")).spec
    assert spec[:2] == (TensorSpec((3, 2, 4), "float4_e2m1", 24), TensorSpec((2, 4, 2, 4), "float4_e2m1", 0))


def test_names_of_dtypes_are_the_sides_own() -> None:
    arguments = normalise(**float4(norm(), "float4_e2m1") | {"value_dtype": "float4_e1m2"})
    assert (arguments.key_dtype, arguments.value_dtype) == ("float4_e2m1", "float4_e1m2")
