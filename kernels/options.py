"""What a kernel is compiled for; see :mod:`~scatter_pa_kv_cache.patterns.options`."""

from ..patterns.options import PYPTO_DTYPES, jit_options  # noqa: F401
