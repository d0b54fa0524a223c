from __future__ import annotations

import torch
from torch import Tensor

from hisparse_ops.triton._launch import as_lanes, launch
from hisparse_ops.triton.kernels.quantize_scatter_c8 import (
    TILE,
    TILES,
    quantize_scatter_c8_kernel,
)
from hisparse_ops.triton.scatter_c8 import PLACES


def quantize_scatter_c8(
    latent: Tensor, rope: Tensor, slots: Tensor, cache: Tensor, *, layout: str, scale_rule: str
) -> None:
    n = len(slots)
    if n == 0 or cache.numel() == 0:
        return
    rope_at, scales_at = PLACES[layout]
    tails, rows = as_lanes(rope, torch.int8), as_lanes(cache, torch.int8)
    launch(
        quantize_scatter_c8_kernel,
        cache.device,
        n,
        latent,
        tails.base,
        slots,
        rows.base,
        n,
        rope_at,
        scales_at,
        slots.stride(0),
        latent.stride(0),
        tails.row_stride,
        *rows.layout,
        POW2=scale_rule == "pow2",
        TILE=TILE,
        TILES=TILES,
    )
