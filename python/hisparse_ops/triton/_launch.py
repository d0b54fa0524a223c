"""How launchers see tensors, and the one place that starts kernels."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hisparse_ops.checks import row_bytes
from hisparse_ops.triton.host_memory import DevicePointer, address
from hisparse_ops.triton.kernels._variant import BLOCKS

MAX_PROGRAMS = 65_535
"""More programs than this cannot be started at once on Ascend."""

_LANES = ((4, torch.int32), (2, torch.int16), (1, torch.int8))

Launch = Callable[[Any, int, tuple[Any, ...], dict[str, Any]], None]


def start(kernel: Any, programs: int, args: tuple[Any, ...], constants: dict[str, Any]) -> None:
    """Start ``programs`` programs of a kernel."""
    kernel[(programs,)](*args, **constants)


launcher: Launch = start
"""What starts kernels; tools that count launches or run a kernel otherwise put their own here."""


def launch(kernel: Any, device: torch.device, work: int, *args: Any, **constants: Any) -> None:
    """Start a kernel on as many programs as there are cores, or pieces of work if those are fewer."""
    launcher(kernel, min(work, cores(device), MAX_PROGRAMS), args, constants)


@functools.cache
def cores(device: torch.device) -> int:
    """Programs that run at the same time."""
    if device.type == "cuda":
        # Rows are short: several programs a multiprocessor hide the latency of host memory.
        return 16 * torch.cuda.get_device_properties(device).multi_processor_count
    if device.type == "cpu":
        return interpreted_cores
    from triton.runtime import driver

    properties = driver.active.utils.get_device_properties(device.index or 0)
    return int(properties["num_vectorcore"])


interpreted_cores = 3
"""Programs of an interpreted kernel: few, so that every program takes several pieces of the work."""


@dataclass(frozen=True)
class Rows:
    """A slab of rows as a kernel sees it: where it starts, and strides in lanes."""

    base: Any
    count: int
    block_rows: int
    block_stride: int
    row_stride: int

    @property
    def layout(self) -> tuple[int, int, int, int]:
        """``count, block_rows, block_stride, row_stride``."""
        return self.count, self.block_rows, self.block_stride, self.row_stride

    @property
    def strides(self) -> tuple[int, int, int]:
        """``block_rows, block_stride, row_stride``, for rows that are known to be inside."""
        return self.layout[1:]


def lane_type(*slabs: Tensor, offsets: tuple[int, ...] = ()) -> tuple[int, torch.dtype]:
    """Bytes and dtype of the widest lane that every row of every slab is made of; ``offsets`` are bytes in a row."""
    common = math.gcd(4, *offsets)
    for t in slabs:
        item = t.element_size()
        strides = (t.stride(d) * item for d in range(t.dim() - 1) if t.shape[d] > 1)
        common = math.gcd(common, t.data_ptr(), row_bytes(t), *strides)
    return next((size, dtype) for size, dtype in _LANES if common % size == 0)


def as_lanes(t: Tensor, dtype: torch.dtype) -> Rows:
    """A slab, ``[rows, width]`` or ``[blocks, block_size, width]``, in lanes of ``dtype``."""
    size = dtype.itemsize
    item = t.element_size()
    blocks, block_rows = (1, t.shape[0]) if t.dim() == 2 else (t.shape[0], t.shape[1])
    block_stride = 0 if t.dim() == 2 else t.stride(0) * item // size
    row_stride = t.stride(-2) * item // size
    base = torch.empty(0, dtype=dtype, device=t.device)
    if t.numel() > 0:
        # Two dtypes of one storage; a view would ask for strides that divide.
        base = base.set_(t.untyped_storage(), t.storage_offset() * item // size, (1,), (1,))
    return Rows(base, blocks * block_rows, max(1, block_rows), block_stride, row_stride)


def host_lanes(op: str, argument: str, t: Tensor, dtype: torch.dtype, device: torch.device) -> Rows:
    """:func:`as_lanes` of a slab that may stay in host memory while the kernel runs on ``device``."""
    rows = as_lanes(t, dtype)
    if t.device == device:
        return rows
    return replace(rows, base=DevicePointer(address(op, argument, t, device), dtype))


def block_of(lanes: int) -> int:
    """Lanes that one step of a kernel moves."""
    return next((block for block in BLOCKS if block >= lanes), BLOCKS[-1])
