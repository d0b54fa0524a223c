from __future__ import annotations

from torch import Tensor

from hisparse_ops.checks import row_bytes
from hisparse_ops.triton._launch import as_lanes, block_of, lane_type, launch
from hisparse_ops.triton._table import Item, device_table
from hisparse_ops.triton.kernels.scatter_rows import FIELDS, scatter_rows_kernel


def scatter_rows(rows: list[Tensor], slots: Tensor, caches: list[Tensor]) -> None:
    n = len(slots)
    pairs = [(r, c) for r, c in zip(rows, caches, strict=True) if c.numel() > 0]
    if n == 0 or not pairs:
        return
    size, dtype = lane_type(*(t for pair in pairs for t in pair))
    items: list[Item] = []
    for source, cache in pairs:
        new, kept = as_lanes(source, dtype), as_lanes(cache, dtype)
        lanes = row_bytes(cache) // size
        items.append((source.data_ptr(), cache.data_ptr(), lanes, new.row_stride, *kept.layout))
    launch(
        scatter_rows_kernel,
        slots.device,
        n * len(items),
        new.base,
        device_table("scatter_rows", "caches", items, slots.device),
        slots,
        n,
        len(items),
        slots.stride(0),
        FIELDS=FIELDS,
        BLOCK=block_of(max(item[2] for item in items)),
    )
