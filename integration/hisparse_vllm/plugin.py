"""Entry points: what vLLM calls to learn of this package, in every process it starts."""

from __future__ import annotations

from importlib.util import find_spec

from hisparse_vllm.core import interpreter


def platform() -> str | None:
    """``vllm.platform_plugins``: the platform class to use, or None to leave the choice to others.

    On Ascend vLLM's platform is vllm-ascend's, and :func:`register` extends it. With CUDA vLLM has HiSparse itself.
    """
    if find_spec("vllm_ascend") is not None or _has_cuda():
        return None
    interpreter.offer()  # vLLM looks for Triton right after it has a platform
    return "hisparse_vllm.platform.HiSparseCpuPlatform"


def register() -> None:
    """``vllm.general_plugins``: give Core its ops and, on the CPU, its stand-ins for CUDA."""
    from vllm.platforms import current_platform

    from hisparse_vllm import invalidation, prefetch
    from hisparse_vllm import platform as platforms
    from hisparse_vllm.core import device, ops

    if current_platform.is_cuda():
        return
    ops.register()
    invalidation.install()
    prefetch.install()
    if current_platform.is_cpu():
        from hisparse_vllm.attention import adapters

        device.install()
        adapters.install()
    elif not isinstance(current_platform, platforms.HiSparsePlatform):
        platforms.extend(type(current_platform))


def _has_cuda() -> bool:
    import torch

    return torch.version.cuda is not None and torch.cuda.is_available()
