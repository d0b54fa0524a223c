import torch
from torch import Tensor


def gather_plan(
    host_cache: Tensor,
    hot_cache: Tensor,
    host_rows: Tensor,
    hot_rows: Tensor,
    miss_mask: Tensor,
    *,
    attention_indices: Tensor | None = None,
    attention_block_stride: int = 0,
    request_state_indices: Tensor | None = None,
) -> None:
    host = [row for page in _pages(host_cache) for row in page]
    pages = _pages(hot_cache)
    block_size = pages.shape[1]
    hot = [row for page in pages for row in page]
    for r in range(host_rows.shape[0]):
        padding = request_state_indices is not None and int(request_state_indices[r]) < 0
        for c in range(host_rows.shape[1]):
            source, target = int(host_rows[r, c]), int(hot_rows[r, c])
            usable = not padding and 0 <= target < len(hot)
            if attention_indices is not None:
                attention_indices[r, c] = -1
                if usable:
                    block, offset = divmod(target, block_size)
                    attention_indices[r, c] = block * attention_block_stride + offset
            if not usable or source < 0 or int(miss_mask[r, c]) == 0:
                continue
            if source < len(host):
                hot[target].view(torch.uint8).copy_(host[source].view(torch.uint8))
            else:
                hot[target].zero_()


def _pages(cache: Tensor) -> Tensor:
    return cache if cache.dim() == 3 else cache[None]
