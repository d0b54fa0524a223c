from __future__ import annotations

from torch import Tensor

from hisparse_ops.triton._launch import as_lanes, lane_type, launch
from hisparse_ops.triton.kernels.scatter_c8 import NOPE, scatter_c8_kernel

PLACES = {"ascend": (512, 640), "core": (528, 512)}
"""First byte of the rope and of the scales in a row."""


def scatter_c8(
    nope: Tensor, rope: Tensor, scales: Tensor, slots: Tensor, cache: Tensor, *, layout: str
) -> None:
    n = len(slots)
    if n == 0 or cache.numel() == 0:
        return
    rope_at, scales_at = PLACES[layout]
    size, dtype = lane_type(nope, rope, scales, cache)
    parts = [as_lanes(t, dtype) for t in (nope, rope, scales)]
    rows = as_lanes(cache, dtype)
    launch(
        scatter_c8_kernel,
        cache.device,
        n,
        *(part.base for part in parts),
        slots,
        rows.base,
        n,
        rope_at // size,
        scales_at // size,
        slots.stride(0),
        *(part.row_stride for part in parts),
        *rows.layout,
        BLOCK=NOPE // size,
    )
