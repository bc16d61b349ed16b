"""The torch operator: registered once and late, opcheck for every scenario, and compiled graphs that equal eager."""

import subprocess
import sys

import _checkout
import pytest
import rule_cases
import torch
from sim_cases import memory, noise, twin

from scatter_pa_kv_cache import TilingError, plan, row_index, scatter_pa_kv_cache
from scatter_pa_kv_cache.compat import reshape_and_cache_flash
from scatter_pa_kv_cache.op import OPERATOR

CASES = {name: getattr(rule_cases, name) for name in ("norm", "nct", "siso", "nz4", "nz5", "alibi", "rope", "four_d")}
CASES |= {
    "omni": lambda: rule_cases.rope() | {"scatter_mode": "Omni"},
    "nhsd": rule_cases.nhsd,
    "four_d_omni": lambda: rule_cases.four_d() | {"scatter_mode": "Omni"},
    "four_d_alibi": rule_cases.four_d_alibi,
    "key_only": lambda: rule_cases.norm() | {"value": None, "value_cache": None},
    "float4": lambda: (
        rule_cases.norm(torch.uint8) | {"key_dtype": "float4_e2m1", "value_dtype": "float4_e2m1", "soc": "950"}
    ),
}
NAMES = ("key", "key_cache", "slot_mapping", "value", "value_cache")


def split(case):
    """The positional and the keyword arguments of the operator."""
    return tuple(case[name] for name in NAMES), {name: given for name, given in case.items() if name not in NAMES}


def test_registration_is_late_and_once():
    script = """
import torch, scatter_pa_kv_cache
from scatter_pa_kv_cache import scatter_pa_kv_cache as write, compat
known = lambda: hasattr(torch.ops.scatter_pa_kv_cache, "scatter_pa_kv_cache")
tensors = torch.zeros(0, 1, 8), torch.zeros(1, 4, 1, 8), torch.zeros(0, dtype=torch.int32)
write(*tensors)
print(known())
torch.compile(write, fullgraph=True, backend="eager")(*tensors)
print(known())
import scatter_pa_kv_cache.op
from scatter_pa_kv_cache import op
print(op.OPERATOR is torch.ops.scatter_pa_kv_cache.scatter_pa_kv_cache.default)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=_checkout.ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True", "True"]


def test_the_schema_is_the_public_function():
    assert str(OPERATOR._schema) == (
        "scatter_pa_kv_cache::scatter_pa_kv_cache(Tensor key, Tensor(a1!) key_cache, Tensor slot_mapping, "
        "Tensor? value=None, Tensor(a4!)? value_cache=None, *, Tensor? compress_lens=None, "
        'Tensor? compress_seq_offset=None, Tensor? seq_lens=None, str? cache_mode="Norm", '
        'str? scatter_mode="None", SymInt[]? strides=None, SymInt[]? offsets=None, str? key_dtype=None, '
        "str? value_dtype=None, str? run_mode=None, str? soc=None, bool? check_data=None) -> ()"
    )


@pytest.mark.parametrize("name", CASES)
def test_opcheck(name):
    case = CASES[name]()
    torch.library.opcheck(OPERATOR, *split(case))


@pytest.mark.parametrize("name", CASES)
def test_the_operator_does_what_the_function_does(name):
    case = CASES[name]()
    eager = twin(case)
    scatter_pa_kv_cache(**eager)
    arguments, options = split(case)
    torch.ops.scatter_pa_kv_cache.scatter_pa_kv_cache(*arguments, **options)
    for cache in ("key_cache", "value_cache"):
        assert case[cache] is None or torch.equal(memory(case[cache]), memory(eager[cache]))


@pytest.mark.parametrize("name", ["norm", "siso", "nz5", "rope", "float4"])
def test_a_compiled_write_then_read_equals_eager(name):
    def step(case):
        scatter_pa_kv_cache(**case)
        return [case[cache].clone() for cache in ("key_cache", "value_cache") if case[cache] is not None]

    case = CASES[name]()
    eager = twin(case)
    expected = step(eager)
    torch.compiler.reset()
    read = torch.compile(step, fullgraph=True, backend="aot_eager")(case)
    assert all(map(torch.equal, read, expected))
    for cache in ("key_cache", "value_cache"):
        assert case[cache] is None or torch.equal(memory(case[cache]), memory(eager[cache]))


def interleaved(kv, qkv, slots):
    """Write a fused QKV matrix into interleaved blocks, then read what the first slots hold, and write again."""
    _, key, value = qkv.unbind(1)
    key_cache, value_cache = kv[:, 0], kv[:, 1]
    scatter_pa_kv_cache(key * 2, key_cache, slots, value, value_cache)
    read = key_cache.flatten(0, 1)[slots.clamp(min=0)] + value_cache.flatten(0, 1)[slots.clamp(min=0)]
    scatter_pa_kv_cache(read, key_cache, slots, read, value_cache)
    return read, kv.clone()


def layers(kv, qkv, slots):
    _, key, value = qkv.unbind(1)
    scatter_pa_kv_cache(key, kv[1], slots, value, kv[0])
    return kv[0] - kv[1]


def sliced(kv, qkv, slots):
    """The caches begin where the number of tokens says."""
    _, key, value = qkv.unbind(1)
    scatter_pa_kv_cache(key, kv[0][len(slots) :], slots, value, kv[1][len(slots) :])
    return kv.clone()


def flash(kv, qkv, slots):
    _, key, value = qkv.unbind(1)
    reshape_and_cache_flash(key, value, kv[0], kv[1], slots, "auto", None, None)
    return kv + 1


BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("step", "shape"),
    [(interleaved, (4, 2, 4, 2, 8)), (layers, (2, 4, 4, 2, 8)), (sliced, (2, 14, 4, 2, 8)), (flash, (2, 4, 4, 2, 8))],
)
def test_views_made_in_the_graph_are_written(step, shape, backend, dynamic):
    random = torch.Generator().manual_seed(0)
    torch.compiler.reset()
    compiled = torch.compile(step, fullgraph=True, backend=backend, dynamic=dynamic)
    kv = torch.randn(shape, generator=random)
    twin_kv = kv.clone()
    for tokens in (3, 5, 7):
        qkv = torch.randn(tokens, 3, 2, 8, generator=random)
        slots = torch.randperm(16, generator=random)[:tokens]
        slots[1] = -1
        for got, expected in zip(compiled(kv, qkv, slots), step(twin_kv, qkv, slots), strict=True):
            assert torch.equal(got, expected)
        assert torch.equal(kv, twin_kv)


def test_a_changed_number_of_tokens_does_not_compile_again():
    graphs = torch._dynamo.testing.CompileCounter()
    write = torch.compile(scatter_pa_kv_cache, fullgraph=True, backend=graphs)
    torch.compiler.reset()
    kv = torch.zeros(2, 8, 4, 2, 8)
    for tokens in (3, 5, 7, 11):
        key = torch.ones(tokens, 2, 8)
        write(key, kv[0], torch.arange(tokens), key, kv[1])
    assert graphs.frame_count == 2  # three tokens, then any number of them


def test_a_row_index_under_compile():
    random = torch.Generator().manual_seed(0)
    kv = noise((2, 4, 4, 2, 8), torch.bfloat16, random)
    slots = torch.tensor([3, -1, 9])
    key = noise((3, 2, 8), torch.bfloat16, random)
    eager = kv.clone()
    index = row_index(slots, kv[0], kv[1])
    scatter_pa_kv_cache(key, eager[0], index, key, eager[1])
    torch.compiler.reset()
    torch.compile(scatter_pa_kv_cache, fullgraph=True, backend="aot_eager")(key, kv[0], index, key, kv[1])
    assert torch.equal(memory(kv), memory(eager))


def test_a_refused_call_is_refused_compiled_and_leaves_the_cache():
    case = rule_cases.norm()
    before = case["key_cache"].clone()
    torch.compiler.reset()
    write = torch.compile(scatter_pa_kv_cache, fullgraph=True, backend="aot_eager")
    with pytest.raises(TilingError, match="slot_mapping has 2 slots"):
        write(**case | {"slot_mapping": torch.tensor([0, 1])})
    with pytest.raises(TilingError, match="strides is"):
        write(**rule_cases.nct() | {"strides": None})
    assert torch.equal(case["key_cache"], before)


def test_none_for_strides_is_the_operators_default():
    case = rule_cases.nct() | {"key": torch.arange(100.0).half()[:24].view(3, 2, 4)}
    del case["strides"], case["offsets"]
    eager = twin(case)
    plan(**eager).run()
    arguments, options = split(case)
    OPERATOR(*arguments, **options)
    assert torch.equal(case["key_cache"], eager["key_cache"])


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_writes_any_number_of_tokens(strict):
    class Writer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("kv", torch.zeros(2, 4, 4, 2, 8))

        def forward(self, key, value, slots):
            scatter_pa_kv_cache(key, self.kv[0], slots, value, self.kv[1])
            return self.kv.clone()

    tokens = torch.export.Dim("tokens", min=2, max=16)
    example = (torch.randn(3, 2, 8), torch.randn(3, 2, 8), torch.tensor([1, -1, 9]))
    program = torch.export.export(Writer(), example, dynamic_shapes=({0: tokens},) * 3, strict=strict)
    key, slots, expected = torch.randn(5, 2, 8), torch.tensor([15, 2, -1, 7, 8]), torch.zeros(2, 4, 4, 2, 8)
    scatter_pa_kv_cache(key, expected[0], slots, key, expected[1])
    assert torch.equal(program.module()(key, key, slots), expected)
