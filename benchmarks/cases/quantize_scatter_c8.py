from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

BLOCK_SIZE = 64
CACHE_ROWS = 65536


def quantize(
    gen: torch.Generator,
    *,
    tokens: int,
    layout: str,
    scale_rule: str,
    dtype: torch.dtype = torch.bfloat16,
) -> dict[str, Any]:
    """New tokens go to slots all over the cache."""
    return {
        "latent": torch.randn(tokens, 512, generator=gen).to(dtype),
        "rope": torch.randn(tokens, 64, generator=gen).bfloat16(),
        "slots": torch.randperm(CACHE_ROWS, generator=gen)[:tokens].int(),
        "cache": torch.zeros(CACHE_ROWS // BLOCK_SIZE, BLOCK_SIZE, 656, dtype=torch.uint8),
        "layout": layout,
        "scale_rule": scale_rule,
    }


_ascend = partial(quantize, layout="ascend", scale_rule="amax")
_core = partial(quantize, layout="core", scale_rule="pow2")

CASES: dict[str, Callable[[torch.Generator], dict[str, Any]]] = {
    "glm52-prefill-8192": partial(_ascend, tokens=8192),
    "glm52-prefill-8192-core": partial(_core, tokens=8192),
    "glm52-prefill-8192-float32": partial(_core, tokens=8192, dtype=torch.float32),
    "glm52-mtp3": partial(_ascend, tokens=128),
    "dsv32-decode-256": partial(_core, tokens=256),
}


def bytes_moved(args: dict[str, Any]) -> int:
    read = args["latent"].nbytes + args["rope"].nbytes + args["slots"].nbytes
    return int(read) + len(args["slots"]) * 656
