from __future__ import annotations

from torch import Tensor

from hisparse_ops.checks import row_bytes
from hisparse_ops.triton._launch import as_lanes, block_of, cores, lane_type, launch
from hisparse_ops.triton._pairs import MAX_PARTS
from hisparse_ops.triton.kernels.publish_indexer_pages import publish_indexer_pages_kernel


def publish_indexer_pages(
    source: Tensor,
    source_blocks: Tensor,
    logical_blocks: Tensor,
    slab: Tensor,
    *,
    row_counts: Tensor | None = None,
) -> None:
    n = len(logical_blocks)
    if n * source.numel() * slab.numel() == 0:
        return
    size, dtype = lane_type(source, slab)
    read, write = as_lanes(source, dtype), as_lanes(slab, dtype)
    lanes = row_bytes(slab) // size
    # A kernel has no absent arguments: a list of the right type stands in for one that it does not read.
    counts = logical_blocks if row_counts is None else row_counts
    parts = min(n, cores(slab.device), MAX_PARTS)
    launch(
        publish_indexer_pages_kernel,
        slab.device,
        parts,
        read.base,
        source_blocks,
        logical_blocks,
        write.base,
        counts,
        n,
        parts,
        lanes,
        slab.shape[1],
        source_blocks.stride(0),
        logical_blocks.stride(0),
        counts.stride(0),
        source.shape[0],
        read.block_stride,
        read.row_stride,
        slab.shape[0],
        write.block_stride,
        write.row_stride,
        HAS_COUNTS=row_counts is not None,
        BLOCK=block_of(lanes),
    )
