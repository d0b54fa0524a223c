import torch
from torch import Tensor


def publish_indexer_pages(
    source: Tensor,
    source_blocks: Tensor,
    logical_blocks: Tensor,
    slab: Tensor,
    *,
    row_counts: Tensor | None = None,
) -> None:
    for i, (page, block) in enumerate(
        zip(source_blocks.tolist(), logical_blocks.tolist(), strict=True)
    ):
        if not (1 <= page < len(source) and 1 <= block < len(slab)):
            continue
        count = slab.shape[1] if row_counts is None else int(row_counts[i])
        for offset in range(slab.shape[1]):
            if offset < count:
                slab[block, offset].view(torch.uint8).copy_(source[page, offset].view(torch.uint8))
