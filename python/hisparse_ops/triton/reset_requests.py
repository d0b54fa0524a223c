from __future__ import annotations

from torch import Tensor

from hisparse_ops.triton._launch import launch
from hisparse_ops.triton.kernels.reset_requests import BLOCK, reset_requests_kernel


def reset_requests(hot_owner: Tensor, lru_slots: Tensor, state_rows: Tensor) -> None:
    n = len(state_rows)
    if n * hot_owner.numel() == 0:
        return
    launch(
        reset_requests_kernel,
        hot_owner.device,
        n,
        hot_owner,
        lru_slots,
        state_rows,
        n,
        *hot_owner.shape,
        state_rows.stride(0),
        hot_owner.stride(0),
        lru_slots.stride(0),
        BLOCK=BLOCK,
    )
