"""What a kernel is compiled for: the jit options of each stage, and PyPTO's names of the dtypes."""

import pypto

PYPTO_DTYPES = {
    "float16": pypto.DT_FP16,
    "bfloat16": pypto.DT_BF16,
    "float32": pypto.DT_FP32,
    "int8": pypto.DT_INT8,
    "int16": pypto.DT_INT16,
    "int32": pypto.DT_INT32,
    "uint32": pypto.DT_UINT32,
    "int64": pypto.DT_INT64,
    "float8_e4m3fn": pypto.DT_FP8E4M3,
    "float8_e5m2": pypto.DT_FP8E5M2,
    "hifloat8": pypto.DT_HF8,
}

_VALUES = {
    "enable_pass_verify": True,
    "pass_verify_save_tensor": False,
    "pass_verify_pass_filter": ["no_verify"],
    "pass_verify_error_tol": [0.0, 0.0],
}
_VERDICTS = {**_VALUES, "pass_verify_pass_filter": ["all"]}


def jit_options(stage, nbuffer=()):
    """Keyword arguments of ``pypto.frontend.jit`` for one stage.

    ``npu``: compile and launch on a device (never run by this project). ``values``: the tensor graph, computed by the
    interpreter. ``verdicts``: the same, then every compiler pass compared with it at zero tolerance. ``cost``: the
    whole compilation and PyPTO's cost model. ``code``: up to the emitted AICore source.
    nbuffer: pairs of PyPTO's ``vec_nbuffer_setting``, how many alike vector subgraphs become one task.
    """
    sim = pypto.RunMode.SIM
    run_mode, compile_stage, verify = {
        "npu": (pypto.RunMode.NPU, pypto.CompStage.ALL_COMPLETE, None),
        "values": (sim, pypto.CompStage.TENSOR_GRAPH, _VALUES),
        "verdicts": (sim, pypto.CompStage.EXECUTE_GRAPH, _VERDICTS),
        "cost": (sim, pypto.CompStage.ALL_COMPLETE, None),
        "code": (sim, pypto.CompStage.CODEGEN_INSTRUCTION, None),
    }[stage]
    return {
        "runtime_options": {"run_mode": run_mode},
        "host_options": {"compile_stage": compile_stage},
        "pass_options": {"vec_nbuffer_setting": dict(nbuffer)} if nbuffer else None,
        "verify_options": verify,
    }
