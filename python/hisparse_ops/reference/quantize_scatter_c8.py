import math

import torch
from torch import Tensor

# First byte of rope and scales; the latent starts at 0.
PLACES = {"ascend": (512, 640), "core": (528, 512)}


def tile_scale(tile: Tensor, scale_rule: str) -> float:
    """The scale of 128 float32 values."""
    finite = tile[tile.isfinite()].abs()
    amax = finite.max() if finite.numel() else torch.zeros(())
    ratio = amax / torch.tensor(448.0)
    if scale_rule == "amax":
        return max(float(ratio), 2.0**-116)
    # frexp: 0.5 <= mantissa < 1, so only an exact power of two has 0.5 and keeps its exponent.
    mantissa, exponent = math.frexp(max(float(ratio), float(torch.tensor(1e-4))))
    return math.ldexp(1.0, exponent - 1 if mantissa == 0.5 else exponent)


def tile_codes(tile: Tensor, scale: float) -> Tensor:
    """The codes of 128 float32 values."""
    ratio = tile / torch.tensor(scale, dtype=torch.float32)
    # Clamped first: the cast of older torch makes NaN of what is too large.
    codes = ratio.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    nan_codes = torch.where(tile.view(torch.int32) < 0, 0xFF, 0x7F).to(torch.uint8)
    return torch.where(tile.isnan(), nan_codes, codes)


def quantize_scatter_c8(
    latent: Tensor, rope: Tensor, slots: Tensor, cache: Tensor, *, layout: str, scale_rule: str
) -> None:
    at_rope, at_scales = PLACES[layout]
    blocks = cache if cache.dim() == 3 else cache[None]
    block_size = blocks.shape[1]
    for i, slot in enumerate(slots.tolist()):
        if not 0 <= slot < blocks.shape[0] * block_size:
            continue
        row = blocks[slot // block_size, slot % block_size].view(torch.uint8)
        for t, tile in enumerate(latent[i].float().view(4, 128)):
            scale = tile_scale(tile, scale_rule)
            row[t * 128 : (t + 1) * 128] = tile_codes(tile, scale)
            at = at_scales + 4 * t
            row[at : at + 4] = torch.tensor([scale]).view(torch.uint8)
        row[at_rope : at_rope + 128] = rope[i].view(torch.uint8)
