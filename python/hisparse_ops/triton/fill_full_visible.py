from __future__ import annotations

from torch import Tensor

from hisparse_ops.triton._launch import launch
from hisparse_ops.triton.kernels.fill_full_visible import BLOCK, fill_full_visible_kernel


def fill_full_visible(table: Tensor) -> None:
    rows, columns = table.shape
    if rows * columns == 0:
        return
    launch(
        fill_full_visible_kernel,
        table.device,
        rows,
        table,
        rows,
        columns,
        table.stride(0),
        BLOCK=BLOCK,
    )
