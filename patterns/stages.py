"""Vector stages that the fused kernels share. Floats are bf16 outside and fp32 inside, rounded where a stage says so.

Plain functions, called inside a jit kernel with the vector tile set to the rows and columns of their tensors.
"""

import pypto

BF16, FP32 = pypto.DT_BF16, pypto.DT_FP32


def rows_of(tensor, first, count, tile, width=None, column=0):
    """Rows ``first .. first+count-1`` of a parameter [T, W]: [tile, width], count of them valid.

    width: a Python int, all columns by default; column: the first one.
    """
    width = width or tensor.shape[1]
    return pypto.view(tensor, [tile, width], [first, column], valid_shape=[count, width])


def columns(tile_rows, first, width, count):
    """Columns ``first .. first+width-1`` of a tile [n, W], of which count rows are valid."""
    return pypto.view(tile_rows, [tile_rows.shape[0], width], [0, first], valid_shape=[count, width])


def join(parts, count):
    """Tiles [n, *] side by side, count rows valid: ``concat`` alone forgets how many are."""
    whole = pypto.concat(parts, -1)
    return columns(whole, 0, whole.shape[1], count)


def to_fp32(rows):
    """bf16 to fp32: exact."""
    return pypto.cast(rows, FP32)


def to_bf16(rows):
    """fp32 to bf16, ties to even."""
    return pypto.cast(rows, BF16)


def to_int8(rows):
    """fp32 to int8, ties to even, saturating.

    Clamped first, so that no cast on the way from int32 over fp16 has to saturate: the interpreter's casts cannot.
    """
    clamped = pypto.minimum(pypto.maximum(rows, -128.0), 127.0)
    whole = pypto.cast(clamped, pypto.DT_INT32, pypto.CastMode.CAST_RINT)
    return pypto.cast(pypto.cast(whole, pypto.DT_FP16), pypto.DT_INT8)


def mean_square(rows):
    """[n, W] fp32 to [n, 1]: each square is multiplied by 1/W before they are added."""
    return pypto.sum(rows * rows * (1.0 / rows.shape[1]), -1, True)


def rms_norm(rows, gamma, epsilon):
    """``rows * (1 / sqrt(mean(rows**2) + epsilon)) * gamma``: [n, W] fp32 to bf16. gamma: [1, W] fp32."""
    return to_bf16(rows * pypto.reciprocal(pypto.sqrt(mean_square(rows) + epsilon)) * gamma)


def rms_norm_bias(rows, gamma, beta, epsilon):
    """``rows / sqrt(mean(rows**2) + epsilon) * gamma + beta``: [n, W] fp32 to bf16. gamma, beta: [1, W] bf16."""
    return to_bf16(rows / pypto.sqrt(mean_square(rows) + epsilon) * to_fp32(gamma) + to_fp32(beta))
