"""Pairs of slabs, one a layer, for one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hisparse_ops.checks import row_bytes
from hisparse_ops.triton._launch import Rows, as_lanes, cores, lane_type
from hisparse_ops.triton._table import Item, device_table
from hisparse_ops.triton.host_memory import address

MAX_PARTS = 32
"""Owners of a layer's destination at most: every one reads the whole list."""


@dataclass(frozen=True)
class Pairs:
    """What a kernel takes for lists of sources and destinations."""

    lane: Any
    table: Tensor
    counts: Tensor
    layers: int
    parts: int
    lanes: int
    """Lanes of the widest row."""


def slab_pairs(
    op: str,
    sources: Sequence[Tensor],
    destinations: Sequence[Tensor],
    device: torch.device,
    count: Callable[[Rows], int],
) -> Pairs | None:
    """The table of the pairs that have anything to copy; ``count`` says what bounds an index. None if there is none."""
    pairs = [
        (layer, s, d)
        for layer, (s, d) in enumerate(zip(sources, destinations, strict=True))
        if s.numel() > 0 and d.numel() > 0
    ]
    if not pairs:
        return None
    size, dtype = lane_type(*(t for _, *pair in pairs for t in pair))
    items: list[Item] = []
    counts: list[Item] = []
    for layer, source, destination in pairs:
        read, write = as_lanes(source, dtype), as_lanes(destination, dtype)
        items.append(
            (
                address(op, f"sources[{layer}]", source, device),
                address(op, f"destinations[{layer}]", destination, device),
                row_bytes(source) // size,
                *read.strides,
                *write.strides,
            )
        )
        counts.append((count(read), count(write)))
    layers = len(items)
    parts = max(1, min(MAX_PARTS, cores(device) // layers))
    return Pairs(
        torch.empty(0, dtype=dtype, device=device),
        device_table(op, "sources", items, device),
        device_table(op, "sources", counts, device),
        layers,
        parts,
        max(item[2] for item in items),
    )
