from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

BLOCK_SIZE = 64
CACHE_ROWS = 65536


def scatter(gen: torch.Generator, *, tokens: int, widths: Sequence[int]) -> dict[str, Any]:
    """New tokens go to slots all over the cache; widths in bfloat16 values."""
    shape = (CACHE_ROWS // BLOCK_SIZE, BLOCK_SIZE)
    return {
        "rows": [torch.randn(tokens, w, generator=gen).bfloat16() for w in widths],
        "slots": torch.randperm(CACHE_ROWS, generator=gen)[:tokens].int(),
        "caches": [torch.zeros(*shape, w, dtype=torch.bfloat16) for w in widths],
    }


CASES: dict[str, Callable[[torch.Generator], dict[str, Any]]] = {
    "glm52-prefill-8192": partial(scatter, tokens=8192, widths=(576,)),
    "glm52-prefill-8192-pair": partial(scatter, tokens=8192, widths=(512, 64)),
    "glm52-mtp3": partial(scatter, tokens=128, widths=(576,)),
    "dsv32-decode-256": partial(scatter, tokens=256, widths=(576,)),
}


def bytes_moved(args: dict[str, Any]) -> int:
    return 2 * sum(rows.nbytes for rows in args["rows"]) + int(args["slots"].nbytes)
