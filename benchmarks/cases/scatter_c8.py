from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

BLOCK_SIZE = 64
CACHE_ROWS = 65536


def scatter(gen: torch.Generator, *, tokens: int, layout: str) -> dict[str, Any]:
    """New tokens go to slots all over the cache."""
    codes = torch.randint(0, 256, (tokens, 512), dtype=torch.uint8, generator=gen)
    return {
        "nope": codes.view(torch.float8_e4m3fn),
        "rope": torch.randn(tokens, 64, generator=gen).bfloat16(),
        "scales": torch.rand(tokens, 4, generator=gen),
        "slots": torch.randperm(CACHE_ROWS, generator=gen)[:tokens].int(),
        "cache": torch.zeros(CACHE_ROWS // BLOCK_SIZE, BLOCK_SIZE, 656, dtype=torch.uint8),
        "layout": layout,
    }


CASES: dict[str, Callable[[torch.Generator], dict[str, Any]]] = {
    "glm52-prefill-8192": partial(scatter, tokens=8192, layout="ascend"),
    "glm52-mtp3": partial(scatter, tokens=128, layout="ascend"),
    "dsv32-decode-256": partial(scatter, tokens=256, layout="core"),
}


def bytes_moved(args: dict[str, Any]) -> int:
    return len(args["slots"]) * 2 * 656 + int(args["slots"].nbytes)
