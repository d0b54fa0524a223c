from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hisparse_ops.triton._launch import launch
from hisparse_ops.triton._owners import owner_table
from hisparse_ops.triton.kernels._owners import FIELDS, TILE
from hisparse_ops.triton.kernels.invalidate_recycled import RUN, invalidate_recycled_kernel


def invalidate_recycled(owners: Sequence[Tensor], state_rows: Tensor, sorted_slots: Tensor) -> None:
    listed, n = len(state_rows), len(sorted_slots)
    if listed * n == 0:
        return
    table, groups, hot_size = owner_table("invalidate_recycled", owners, sorted_slots.device)
    if groups == 0:
        return
    tiles = -(-hot_size // TILE)
    launch(
        invalidate_recycled_kernel,
        sorted_slots.device,
        groups * listed * tiles,
        table,
        state_rows,
        sorted_slots,
        groups,
        listed,
        n,
        tiles,
        state_rows.stride(0),
        sorted_slots.stride(0),
        FIELDS=FIELDS,
        RUN=RUN,
        TILE=TILE,
    )
