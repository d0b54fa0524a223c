from __future__ import annotations

import torch
from torch import Tensor

from hisparse_ops.triton._launch import launch
from hisparse_ops.triton.kernels.pad_slots import BLOCK, pad_slots_kernel


def pad_slots(slots: Tensor, valid_count: Tensor, out: Tensor) -> None:
    n = len(slots)
    if n == 0:
        return
    narrow = slots.dtype == torch.int64 and out.dtype == torch.int32
    launch(
        pad_slots_kernel,
        out.device,
        -(-n // BLOCK),
        slots,
        valid_count,
        out,
        slots.stride(0),
        out.stride(0),
        n,
        NARROW=narrow,
        BLOCK=BLOCK,
    )
