import torch
from torch import Tensor


def _as_bytes(row: Tensor) -> Tensor:
    return row.view(torch.uint8)


def scatter_rows(rows: list[Tensor], slots: Tensor, caches: list[Tensor]) -> None:
    for source, cache in zip(rows, caches, strict=True):
        block_size = cache.shape[-2]
        count = cache.shape[0] if cache.dim() == 2 else cache.shape[0] * block_size
        for i, slot in enumerate(slots.tolist()):
            if not 0 <= slot < count:
                continue
            row = cache[slot] if cache.dim() == 2 else cache[slot // block_size, slot % block_size]
            _as_bytes(row).copy_(_as_bytes(source[i]))
