"""Owner tables of several groups for one launch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hisparse_ops.triton._table import device_table


def owner_table(op: str, owners: Sequence[Tensor], device: torch.device) -> tuple[Tensor, int, int]:
    """The table, how many groups have owners at all, and their largest hot size."""
    items = [(o.data_ptr(), *o.shape, o.stride(0)) for o in owners if o.numel() > 0]
    if not items:
        return torch.empty(0, dtype=torch.int64, device=device), 0, 0
    return device_table(op, "owners", items, device), len(items), max(item[2] for item in items)
