from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _case(
    layers: int, pages: int, width: int, *, block_size: int = 64, restore: bool = True
) -> Callable[[torch.Generator], dict[str, Any]]:
    def make(gen: torch.Generator) -> dict[str, Any]:
        slab = torch.zeros(pages + 1, layers, block_size, width, dtype=torch.uint8)
        device = [slab[:, layer] for layer in range(layers)]
        host = list(torch.zeros(layers, pages + 1, block_size, width, dtype=torch.uint8))
        pairs = torch.stack([torch.randperm(pages, generator=gen) + 1 for _ in range(2)], 1)
        sources, destinations = (host, device) if restore else (device, host)
        return {"sources": sources, "destinations": destinations, "page_pairs": pairs.int()}

    return make


CASES: dict[str, Callable[[torch.Generator], dict[str, Any]]] = {
    "GLM-5.2/restore-32-pages-79-layers": _case(79, 32, 656),
    "GLM-5.2/spill-32-pages-79-layers": _case(79, 32, 656, restore=False),
    "GLM-5.2/restore-1024-pages-1-layer": _case(1, 1024, 656),
    "GLM-5.2/indexer-132B-256-pages-21-layers": _case(21, 256, 132),
    "DeepSeek-V3.2/restore-bf16-64-pages-of-128-8-layers": _case(8, 64, 1152, block_size=128),
    "no work": _case(1, 0, 656),
}


def bytes_moved(args: dict[str, Any]) -> int:
    """Bytes read and bytes written, page numbers aside."""
    pages = sum(t[0].numel() * t.element_size() for t in args["sources"])
    return 2 * args["page_pairs"].shape[0] * pages
