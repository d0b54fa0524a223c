from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hisparse_ops.checks import num_rows, row_bytes


def _case(
    blocks: int,
    block_size: int,
    width: int,
    n: int,
    *,
    layers: int = 2,
    whole_pages: bool = False,
    valid: float = 1.0,
    invalid: str = "row0",
) -> Callable[[torch.Generator], dict[str, Any]]:
    """n rows of one layer of a slab; whole pages in random order, or rows picked at random."""

    def make(gen: torch.Generator) -> dict[str, Any]:
        slab = torch.zeros(blocks, layers, block_size, width, dtype=torch.uint8)
        if whole_pages:
            pages = torch.randperm(blocks, generator=gen)[: n // block_size]
            ids = (pages[:, None] * block_size + torch.arange(block_size)).flatten()
        else:
            ids = torch.randperm(blocks * block_size, generator=gen)[:n]
        ids = torch.where(torch.rand(n, generator=gen) < valid, ids, -1)
        return {
            "source": slab[:, 0],
            "row_ids": ids.to(torch.int32),
            "staging": torch.zeros(n, width, dtype=torch.uint8),
            "invalid": invalid,
        }

    return make


CASES: dict[str, Callable[[torch.Generator], dict[str, Any]]] = {
    "GLM-5.2/prefill-staging-16384": _case(1024, 64, 656, 16384, whole_pages=True),
    "GLM-5.2/lookahead-patch-8192-of-which-20%": _case(
        1024, 64, 656, 8192, valid=0.2, invalid="keep"
    ),
    "GLM-5.2/decode-4x2048-rows": _case(1024, 64, 656, 8192),
    "GLM-5.2/indexer-132B-16384": _case(1024, 64, 132, 16384, whole_pages=True),
    "DeepSeek-V3.2/bf16-1152B-8192-rows": _case(512, 64, 1152, 8192),
    "no work": _case(2, 64, 656, 0),
}


# From 1 to 8192 rows of one layer, C8 and BF16.
CASES |= {
    f"rows-{n}x{width}B": _case(1024, 64, width, n)
    for width in (656, 1152)
    for n in (1, 16, 256, 2048, 8192)
}


def bytes_moved(args: dict[str, Any]) -> int:
    """Bytes read and bytes written, ids aside."""
    ids, source = args["row_ids"], args["source"]
    inside = int(((ids >= 0) & (ids < num_rows(source))).sum())
    rows = len(ids) if args["invalid"] == "row0" else inside
    return 2 * rows * row_bytes(source)
