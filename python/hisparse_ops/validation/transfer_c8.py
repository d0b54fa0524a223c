"""Value checks of the ops of packed C8 rows. Tokens that are skipped are padding: their contents do not count."""

from __future__ import annotations

import torch
from torch import Tensor

from hisparse_ops.checks import num_rows
from hisparse_ops.validation._values import Values, check_slots, validates

# First byte of the scales in a row.
_SCALES = {"ascend": 640, "core": 512}


def _check_scales(check: Values, argument: str, scales: Tensor, where: Tensor) -> None:
    """A writer's scale is finite and above 0 (of a zero tile too); anything else makes the tile noise or NaN."""
    wrong = ~(torch.isfinite(scales) & (scales > 0)) & where[:, None]
    check.reject(argument, scales, wrong, "be a finite scale above 0")


@validates("scatter_c8")
def _scatter_c8(
    nope: Tensor, rope: Tensor, scales: Tensor, slots: Tensor, cache: Tensor, *, layout: str
) -> None:
    check = Values("scatter_c8")
    real = check_slots(check, "slots", slots, num_rows(cache))
    _check_scales(check, "scales", scales.detach().cpu(), real)


@validates("quantize_scatter_c8")
def _quantize_scatter_c8(
    latent: Tensor, rope: Tensor, slots: Tensor, cache: Tensor, *, layout: str, scale_rule: str
) -> None:
    """NaN and infinity have codes of their own, but no model makes them on purpose."""
    check = Values("quantize_scatter_c8")
    real = check_slots(check, "slots", slots, num_rows(cache))
    for name, t in (("latent", latent), ("rope", rope)):
        if t.is_floating_point():
            values = t.detach().cpu()
            check.reject(name, values, ~torch.isfinite(values) & real[:, None], "be finite")


@validates("dequantize_c8")
def _dequantize_c8(
    cache: Tensor, row_ids: Tensor, latent: Tensor, rope: Tensor, *, layout: str
) -> None:
    """A row that was never written has no scales: it is named by the first that is none, as tile of a row."""
    check = Values("dequantize_c8")
    ids = check.ids("row_ids", row_ids, num_rows(cache), "a row of cache")
    blocks = cache if cache.dim() == 3 else cache[None]
    start = _SCALES[layout]
    for i in (ids >= 0).nonzero()[:, 0].tolist():
        block, offset = divmod(int(ids[i]), blocks.shape[1])
        row = blocks[block, offset].detach().cpu().view(torch.uint8)
        scales = row[start : start + 16].clone().view(torch.float32)
        wrong = ~(torch.isfinite(scales) & (scales > 0))
        if bool(wrong.any()):
            tile = int(wrong.nonzero()[0])
            rule = "name a row whose tiles have finite scales above 0"
            check.fail("row_ids", (i,), rule, f"{int(ids[i])}, scale {scales[tile]} in tile {tile}")
