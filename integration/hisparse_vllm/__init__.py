"""HiSparse in vLLM on platforms that are not CUDA: Ascend by design, the CPU in every test.

vLLM finds this package by its entry points (:mod:`hisparse_vllm.plugin`). vLLM Core keeps allocation, admission,
eviction and request life; this package supplies what Core calls to move and find rows, through ``hisparse_ops``.
"""

from hisparse_vllm._version import __version__

__all__ = ["__version__"]
