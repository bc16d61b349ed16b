"""The calls of other libraries over this operator: same parameter names, order, defaults and padding rules.

``ascend`` holds torch_npu's, ``vllm`` vLLM's and ``flashinfer`` FlashInfer's. All write in place, raise the errors of
``scatter_pa_kv_cache`` and work under torch.compile as it does.
"""

from .ascend import (
    _npu_reshape_and_cache,
    _npu_reshape_and_cache_siso,
    npu_scatter_pa_kv_cache,
    npu_scatter_pa_kv_cache_functional,
)
from .flashinfer import append_paged_kv_cache, append_paged_mla_kv_cache, get_batch_indices_positions
from .vllm import concat_and_cache_mla, reshape_and_cache_flash

__all__ = [
    "_npu_reshape_and_cache",
    "_npu_reshape_and_cache_siso",
    "append_paged_kv_cache",
    "append_paged_mla_kv_cache",
    "concat_and_cache_mla",
    "get_batch_indices_positions",
    "npu_scatter_pa_kv_cache",
    "npu_scatter_pa_kv_cache_functional",
    "reshape_and_cache_flash",
]
