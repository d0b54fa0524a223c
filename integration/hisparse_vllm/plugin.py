"""Entry points: what vLLM calls to learn of this package, in every process it starts."""

from __future__ import annotations

from importlib.util import find_spec

from hisparse_vllm.core import interpreter


def platform() -> str | None:
    """``vllm.platform_plugins``: the platform class to use, or None to leave the choice to others.

    On Ascend vLLM's platform is vllm-ascend's, and :func:`register` extends it. A platform from outside goes before
    vLLM's own ones: where those have a device, CUDA with its own HiSparse among them, this one must not be chosen.
    """
    if find_spec("vllm_ascend") is not None or _has_accelerator():
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


def _has_accelerator() -> bool:
    """Whether vLLM has a platform of its own for this machine. Starts no device context: workers may be forked."""
    import torch

    # Counted by the driver's library and not by starting CUDA, which would break a fork.
    counts = [torch.cuda.device_count()]
    if hasattr(torch, "xpu"):
        counts.append(torch.xpu.device_count())
    return any(counts) or find_spec("libtpu") is not None
