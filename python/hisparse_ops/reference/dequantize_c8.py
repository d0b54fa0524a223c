import torch
from torch import Tensor

# First byte of rope and scales; the latent starts at 0.
PLACES = {"ascend": (512, 640), "core": (528, 512)}
# The quiet NaN without sign of each dtype, as the integer of the same width.
INTEGERS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
NANS = {torch.float32: 0x7FC00000, torch.bfloat16: 0x7FC0, torch.float16: 0x7E00}


def code_value(code: int) -> float:
    """Value of an E4M3FN code: sign, 4 exponent bits of bias 7, 3 mantissa bits, no infinity."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code >> 3) & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return float("nan")
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (8 + mantissa) * 2.0 ** (exponent - 10)


VALUES = torch.tensor([code_value(code) for code in range(256)])


def dequantize_c8(
    cache: Tensor, row_ids: Tensor, latent: Tensor, rope: Tensor, *, layout: str
) -> None:
    at_rope, at_scales = PLACES[layout]
    blocks = cache if cache.dim() == 3 else cache[None]
    block_size = blocks.shape[1]
    for i, row_id in enumerate(row_ids.tolist()):
        if not 0 <= row_id < blocks.shape[0] * block_size:
            latent[i], rope[i] = 0, 0
            continue
        row = blocks[row_id // block_size, row_id % block_size].view(torch.uint8)
        scales = row[at_scales : at_scales + 16].clone().view(torch.float32)
        values = VALUES[row[:512].long()] * scales.repeat_interleave(128)
        latent[i] = values.to(latent.dtype)
        latent[i].view(INTEGERS[latent.dtype])[values.isnan()] = NANS[latent.dtype]
        rope[i].view(torch.uint8).copy_(row[at_rope : at_rope + 128])
