"""Device kernels in Triton: every op but ``resolve``, for CUDA and (with triton-ascend) for Ascend.

Launchers are looked up by op, ``hisparse_ops.triton.<op>``; nothing of Triton is imported before the first call.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch

OPS: tuple[str, ...] = (
    "gather_compact",
    "gather_plan",
    "copy_resident_rows",
    "copy_row_spans",
    "copy_pages",
    "publish_indexer_pages",
    "scatter_rows",
    "scatter_c8",
    "quantize_scatter_c8",
    "dequantize_c8",
    "invalidate_written",
    "invalidate_recycled",
    "reset_requests",
    "residency_stats",
    "fill_full_visible",
    "pad_slots",
)
"""Ops that have a Triton kernel."""

DISPATCH_KEYS = ("CUDA", "PrivateUse1")


def launcher(op: str) -> Callable[..., None]:
    """The function that starts the kernels of ``op``; its arguments are those of the op, checked."""
    found: Callable[..., None] = getattr(importlib.import_module(f"hisparse_ops.triton.{op}"), op)
    return found


def why_missing() -> str:
    """Why no Triton kernel can be used here; empty when they can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed (triton for CUDA, triton-ascend for Ascend)"
    return ""


def register() -> None:
    """Register the kernels for CUDA and Ascend tensors, unless Triton is missing."""
    if why_missing():
        return
    from hisparse_ops.registry import LIB

    for op in OPS:
        for key in DISPATCH_KEYS:
            LIB.impl(op, _kernel(op), key)  # type: ignore[no-untyped-call]


def _kernel(op: str) -> Callable[..., None]:
    from hisparse_ops.registry import ops

    check = ops()[op].check
    start: list[Callable[..., None]] = []

    def kernel(*args: Any, **options: Any) -> None:
        check(*args, **options)
        if not start:
            start.append(launcher(op))
        start[0](*args, **options)

    return kernel


def variants(op: str) -> tuple[Any, ...]:
    """Every specialisation that the launcher of ``op`` may ask for."""
    module = importlib.import_module(f"hisparse_ops.triton.kernels.{op}")
    found: tuple[Any, ...] = module.VARIANTS
    return found


def warm_up() -> int:
    """Compile every kernel for the current device, so that nothing compiles while a graph is captured.

    Shapes, strides and counts are no part of what is compiled: this covers every call whose ids have one dtype. A call
    that mixes int32 and int64 ids compiles once more, so make such a call before capture. Returns how many kernels
    there are now.
    """
    count = 0
    for op in OPS:
        for variant in variants(op):
            arguments = [_stand_in(t) for t in variant.signature.values()]
            variant.kernel.warmup(*arguments, grid=(1,), **variant.constants)
            count += 1
    return count


_DTYPES = {
    "*i8": torch.int8,
    "*i16": torch.int16,
    "*i32": torch.int32,
    "*i64": torch.int64,
    "*bf16": torch.bfloat16,
    "*fp16": torch.float16,
    "*fp32": torch.float32,
}


def _stand_in(t: str) -> Any:
    """An argument of the type: a dtype stands for a pointer."""
    return _DTYPES.get(t, 1)
