from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

BLOCK_SIZE = 64
CACHE_ROWS = 65536
TOP_K = 2048


def read(gen: torch.Generator, *, rows: int, dtype: torch.dtype) -> dict[str, Any]:
    """The rows that sparse attention selects, from all over the cache."""
    cache = torch.randint(0, 127, (CACHE_ROWS, 656), dtype=torch.uint8, generator=gen)
    cache[:, 512:528] = torch.rand(CACHE_ROWS, 4, generator=gen).view(torch.uint8)
    return {
        "cache": cache.view(CACHE_ROWS // BLOCK_SIZE, BLOCK_SIZE, 656),
        "row_ids": torch.randint(0, CACHE_ROWS, (rows,), dtype=torch.int32, generator=gen),
        "latent": torch.zeros(rows, 512, dtype=dtype),
        "rope": torch.zeros(rows, 64, dtype=torch.bfloat16),
        "layout": "core",
    }


CASES: dict[str, Callable[[torch.Generator], dict[str, Any]]] = {
    "glm52-one-query": partial(read, rows=TOP_K, dtype=torch.bfloat16),
    "glm52-mtp3-one-request": partial(read, rows=4 * TOP_K, dtype=torch.bfloat16),
    "glm52-32-requests": partial(read, rows=32 * TOP_K, dtype=torch.bfloat16),
    "glm52-mtp3-one-request-float32": partial(read, rows=4 * TOP_K, dtype=torch.float32),
}


def bytes_moved(args: dict[str, Any]) -> int:
    written = args["latent"].nbytes + args["rope"].nbytes
    return len(args["row_ids"]) * 656 + int(written + args["row_ids"].nbytes)
