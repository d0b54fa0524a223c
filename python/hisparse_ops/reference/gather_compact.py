import math

import torch
from torch import Tensor


def gather_compact(
    host_cache: Tensor, hot_cache: Tensor, host_rows: Tensor, hot_rows: Tensor, counts: Tensor
) -> None:
    for r, count in enumerate(counts.tolist()):
        for c in range(min(max(count, 0), host_rows.shape[1])):
            source, target = int(host_rows[r, c]), int(hot_rows[r, c])
            if source < 0 or target < 0 or target >= math.prod(hot_cache.shape[:-1]):
                continue
            written = _row(hot_cache, target)
            if source < math.prod(host_cache.shape[:-1]):
                written.copy_(_row(host_cache, source))
            else:
                written.zero_()


def _row(cache: Tensor, row: int) -> Tensor:
    if cache.dim() == 3:
        return cache[row // cache.shape[1], row % cache.shape[1]].view(torch.uint8)
    return cache[row].view(torch.uint8)
