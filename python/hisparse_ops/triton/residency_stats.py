from __future__ import annotations

from torch import Tensor

from hisparse_ops.triton._launch import launch
from hisparse_ops.triton.kernels.residency_stats import BLOCK, residency_stats_kernel


def residency_stats(
    valid_counts: Tensor,
    refill_counts: Tensor,
    stats: Tensor,
    *,
    resident_counts: Tensor | None = None,
) -> None:
    rows = len(valid_counts)
    if rows == 0:
        return
    # A kernel has no absent arguments: a list of the right type stands in for one that it does not read.
    resident = valid_counts if resident_counts is None else resident_counts
    launch(
        residency_stats_kernel,
        stats.device,
        1,
        valid_counts,
        refill_counts,
        resident,
        stats,
        rows,
        valid_counts.stride(0),
        refill_counts.stride(0),
        resident.stride(0),
        stats.stride(0),
        HAS_RESIDENT=resident_counts is not None,
        BLOCK=BLOCK,
    )
