"""Host memory that kernels read: which addresses a device knows it by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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


def on_device(base: Tensor, host: Tensor, device: torch.device, op: str) -> Any:
    """What a kernel on ``device`` takes for ``base``, the start of the CPU tensor ``host``."""
    first, span = host.data_ptr(), _span(host)
    if span == 0:
        return base
    for find in _MAPPINGS:
        address = find(first, span, device)
        if address is not None:
            return DevicePointer(address, base.dtype)
    if device.type == "cuda" and host.is_pinned():
        return DevicePointer(
            first, base.dtype
        )  # one address space: pinned memory keeps its address
    raise ValueError(
        f"{op}: host_cache must be on {device}, or pinned or registered host memory, got pageable memory"
    )


def _span(t: Tensor) -> int:
    """Bytes from the first element to the end of the last one."""
    if t.numel() == 0:
        return 0
    steps = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return (steps + 1) * t.element_size()
