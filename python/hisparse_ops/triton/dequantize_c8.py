from __future__ import annotations

import torch
from torch import Tensor

from hisparse_ops.triton._launch import as_lanes, launch
from hisparse_ops.triton.kernels.dequantize_c8 import TILE, TILES, dequantize_c8_kernel
from hisparse_ops.triton.scatter_c8 import PLACES

_FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def dequantize_c8(
    cache: Tensor, row_ids: Tensor, latent: Tensor, rope: Tensor, *, layout: str
) -> None:
    n = len(row_ids)
    if n == 0:
        return
    rope_at, scales_at = PLACES[layout]
    rows, tails = as_lanes(cache, torch.int8), as_lanes(rope, torch.int8)
    bits = torch.int32 if latent.dtype == torch.float32 else torch.int16
    values = as_lanes(latent, bits)
    launch(
        dequantize_c8_kernel,
        latent.device,
        n,
        rows.base,
        row_ids,
        values.base,
        tails.base,
        n,
        rope_at,
        scales_at,
        row_ids.stride(0),
        values.row_stride,
        tails.row_stride,
        *rows.layout,
        FORMAT=_FORMATS[latent.dtype],
        TILE=TILE,
        TILES=TILES,
    )
