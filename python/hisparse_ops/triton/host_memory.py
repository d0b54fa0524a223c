"""Host memory that kernels read: which addresses a device knows it by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hisparse_ops.checks import fail

_MAPPINGS: list[Callable[[int, int, torch.device], int | None]] = []


def add_mapping(find: Callable[[int, int, torch.device], int | None]) -> None:
    """Have ``find(address, bytes, device)`` asked for the device address of host memory; None = not known.

    Whoever registers host memory with a device (``aclrtHostRegister`` and ``aclrtHostGetDevicePointer`` on Ascend)
    adds one; the last one added is asked first.
    """
    _MAPPINGS.insert(0, find)


def remove_mapping(find: Callable[[int, int, torch.device], int | None]) -> None:
    """Undo :func:`add_mapping`."""
    _MAPPINGS.remove(find)


@dataclass(frozen=True)
class DevicePointer:
    """An address for a kernel, in place of a tensor."""

    address: int
    dtype: torch.dtype

    def data_ptr(self) -> int:
        return self.address


def address(op: str, argument: str, t: Tensor, device: torch.device) -> int:
    """Where a kernel on ``device`` finds the tensor, which may stay in host memory."""
    first, span = t.data_ptr(), _span(t)
    if t.device == device or span == 0:
        return first
    for find in _MAPPINGS:
        known = find(first, span, device)
        if known is not None:
            return known
    if device.type == "cuda" and t.is_pinned():
        return first  # one address space: pinned memory keeps its address
    fail(op, argument, f"be on {device}, or pinned or registered host memory", "pageable memory")


def _span(t: Tensor) -> int:
    """Bytes from the first element to the end of the last one."""
    if t.numel() == 0:
        return 0
    steps = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return (steps + 1) * t.element_size()
