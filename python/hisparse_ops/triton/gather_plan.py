from __future__ import annotations

from torch import Tensor

from hisparse_ops.checks import row_bytes
from hisparse_ops.triton._launch import as_lanes, block_of, host_lanes, lane_type, launch
from hisparse_ops.triton.kernels.gather_plan import COLUMNS, gather_plan_kernel


def gather_plan(
    host_cache: Tensor,
    hot_cache: Tensor,
    host_rows: Tensor,
    hot_rows: Tensor,
    miss_mask: Tensor,
    *,
    attention_indices: Tensor | None = None,
    attention_block_stride: int = 0,
    request_state_indices: Tensor | None = None,
) -> None:
    rows, top_k = host_rows.shape
    if rows * top_k == 0:
        return
    size, dtype = lane_type(host_cache, hot_cache)
    host = host_lanes("gather_plan", "host_cache", host_cache, dtype, hot_cache.device)
    hot = as_lanes(hot_cache, dtype)
    lanes = row_bytes(hot_cache) // size
    # A kernel has no absent arguments: tables of the right types stand in for those it does not read.
    attention = host_rows.view(-1)[:0].int() if attention_indices is None else attention_indices
    states = host_rows if request_state_indices is None else request_state_indices
    launch(
        gather_plan_kernel,
        hot_cache.device,
        rows * -(-top_k // COLUMNS),
        host.base,
        hot.base,
        host_rows,
        hot_rows,
        miss_mask,
        attention,
        states,
        rows,
        top_k,
        lanes,
        *host_rows.stride(),
        *hot_rows.stride(),
        *miss_mask.stride(),
        attention.stride(0),
        states.stride(0),
        attention_block_stride,
        *host.layout,
        *hot.layout,
        HAS_ATTENTION=attention_indices is not None,
        HAS_STATES=request_state_indices is not None,
        COLUMNS=COLUMNS,
        BLOCK=block_of(lanes),
    )
