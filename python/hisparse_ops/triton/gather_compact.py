from __future__ import annotations

from torch import Tensor

from hisparse_ops.checks import row_bytes
from hisparse_ops.triton._launch import as_lanes, block_of, host_lanes, lane_type, launch
from hisparse_ops.triton.kernels.gather_compact import COUNTS, gather_compact_kernel


def gather_compact(
    host_cache: Tensor, hot_cache: Tensor, host_rows: Tensor, hot_rows: Tensor, counts: Tensor
) -> None:
    rows, top_k = host_rows.shape
    if rows * top_k == 0 or hot_cache.numel() == 0:
        return
    size, dtype = lane_type(host_cache, hot_cache)
    host = host_lanes("gather_compact", "host_cache", host_cache, dtype, hot_cache.device)
    hot = as_lanes(hot_cache, dtype)
    lanes = row_bytes(hot_cache) // size
    launch(
        gather_compact_kernel,
        hot_cache.device,
        rows * top_k,
        host.base,
        hot.base,
        host_rows,
        hot_rows,
        counts,
        rows,
        top_k,
        lanes,
        *host_rows.stride(),
        *hot_rows.stride(),
        counts.stride(0),
        *host.layout,
        *hot.layout,
        COUNTS=COUNTS,
        BLOCK=block_of(lanes),
    )
