from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _case(
    n: int, width: int, *, layers: int = 2, block_size: int = 64, partial: bool = False
) -> Callable[[torch.Generator], dict[str, Any]]:
    """n pages of a dense indexer cache into one of ``layers`` layers of a slab."""

    def make(gen: torch.Generator) -> dict[str, Any]:
        args: dict[str, Any] = {
            "source": torch.zeros(n + 1, block_size, width, dtype=torch.uint8),
            "source_blocks": (torch.randperm(n, generator=gen) + 1).int(),
            "logical_blocks": (torch.randperm(n, generator=gen) + 1).int(),
            "slab": torch.zeros(n + 1, layers, block_size, width, dtype=torch.uint8)[:, 1],
        }
        if partial:
            counts = torch.randint(1, block_size + 1, (n,), generator=gen)
            args["row_counts"] = counts.int()
        return args

    return make


CASES: dict[str, Callable[[torch.Generator], dict[str, Any]]] = {
    "GLM-5.2/decode-32-partial-pages-132B": _case(32, 132, layers=21, partial=True),
    "GLM-5.2/prefill-8192-tokens-132B": _case(128, 132, layers=21),
    "GLM-5.2/bf16-1024-pages-256B": _case(1024, 256, layers=4),
    "DeepSeek-V3.2/bf16-256-pages-of-128-256B": _case(256, 256, block_size=128, layers=8),
    "no work": _case(0, 132),
}


def bytes_moved(args: dict[str, Any]) -> int:
    """Bytes read and bytes written, block numbers and counts aside."""
    slab = args["slab"]
    counts = args.get("row_counts")
    rows = len(args["logical_blocks"]) * slab.shape[1] if counts is None else int(counts.sum())
    return 2 * rows * slab.shape[2] * slab.element_size()
