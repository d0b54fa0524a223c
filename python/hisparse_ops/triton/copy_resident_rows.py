from __future__ import annotations

from torch import Tensor

from hisparse_ops.checks import row_bytes
from hisparse_ops.triton._launch import as_lanes, block_of, lane_type, launch
from hisparse_ops.triton.kernels.copy_resident_rows import copy_resident_rows_kernel


def copy_resident_rows(source: Tensor, row_ids: Tensor, staging: Tensor, *, invalid: str) -> None:
    n = len(row_ids)
    size, dtype = lane_type(source, staging)
    lanes = row_bytes(staging) // size
    if n * lanes == 0 or (source.numel() == 0 and invalid == "keep"):
        return
    rows, staged = as_lanes(source, dtype), as_lanes(staging, dtype)
    launch(
        copy_resident_rows_kernel,
        staging.device,
        n,
        rows.base,
        row_ids,
        staged.base,
        n,
        lanes,
        row_ids.stride(0),
        *rows.layout,
        *staged.strides,
        ROW0=invalid == "row0",
        BLOCK=block_of(lanes),
    )
