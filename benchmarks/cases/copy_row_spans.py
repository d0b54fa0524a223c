from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hisparse_ops.checks import row_bytes


def _slabs(layers: int, blocks: int, width: int) -> tuple[list[Tensor], list[Tensor]]:
    """Device layers interleaved in one slab, host layers one after the other; blocks of 64 rows."""
    slab = torch.zeros(blocks, layers, 64, width, dtype=torch.uint8)
    host = torch.zeros(layers, blocks * 64, width, dtype=torch.uint8)
    return [slab[:, layer] for layer in range(layers)], list(host)


def _mirror_decode(
    layers: int, requests: int, rows: int
) -> Callable[[torch.Generator], dict[str, Any]]:
    """Each request wrote ``rows`` rows of its last page; one span a row, as built from slots."""

    def make(gen: torch.Generator) -> dict[str, Any]:
        device, host = _slabs(layers, requests + 1, 656)
        pages = torch.randperm(requests, generator=gen) + 1
        offsets = torch.randint(0, 64 - rows, (requests, 1), generator=gen) + torch.arange(rows)
        slots = (pages[:, None] * 64 + offsets).flatten()
        host_rows = ((torch.arange(requests) + 1)[:, None] * 64 + offsets).flatten()
        spans = torch.stack([slots, host_rows, torch.ones_like(slots)], 1)
        return {"sources": device, "destinations": host, "spans": spans}

    return make


def _pages(
    layers: int, pages: int, width: int, *, restore: bool
) -> Callable[[torch.Generator], dict[str, Any]]:
    """Whole pages in random order: mirror of a prefill chunk, or its restore."""

    def make(gen: torch.Generator) -> dict[str, Any]:
        device, host = _slabs(layers, pages + 1, width)
        starts = 64 * (torch.stack([torch.randperm(pages, generator=gen) for _ in range(2)], 1) + 1)
        spans = torch.cat([starts, torch.full((pages, 1), 64)], 1)
        sources, destinations = (host, device) if restore else (device, host)
        return {"sources": sources, "destinations": destinations, "spans": spans}

    return make


CASES: dict[str, Callable[[torch.Generator], dict[str, Any]]] = {
    "GLM-5.2/mirror-32x4-rows-79-layers": _mirror_decode(79, 32, 4),
    "GLM-5.2/mirror-8192-tokens-8-layers": _pages(8, 128, 656, restore=False),
    "GLM-5.2/restore-8192-tokens-1-layer": _pages(1, 128, 656, restore=True),
    "GLM-5.2/restore-32-pages-79-layers": _pages(79, 32, 656, restore=True),
    "DeepSeek-V3.2/mirror-bf16-4096-tokens-8-layers": _pages(8, 64, 1152, restore=False),
    "no work": _pages(1, 0, 656, restore=False),
}


def bytes_moved(args: dict[str, Any]) -> int:
    """Bytes read and bytes written, spans aside."""
    return 2 * int(args["spans"][:, 2].sum()) * sum(row_bytes(t) for t in args["sources"])
