import torch
from torch import Tensor

# First byte of rope and scales; the latent starts at 0.
PLACES = {"ascend": (512, 640), "core": (528, 512)}


def scatter_c8(
    nope: Tensor, rope: Tensor, scales: Tensor, slots: Tensor, cache: Tensor, *, layout: str
) -> None:
    at_rope, at_scales = PLACES[layout]
    blocks = cache if cache.dim() == 3 else cache[None]
    block_size = blocks.shape[1]
    for i, slot in enumerate(slots.tolist()):
        if not 0 <= slot < blocks.shape[0] * block_size:
            continue
        row = blocks[slot // block_size, slot % block_size].view(torch.uint8)
        row[:512] = nope[i].view(torch.uint8)
        row[at_rope : at_rope + 128] = rope[i].view(torch.uint8)
        row[at_scales : at_scales + 16] = scales[i].view(torch.uint8)
