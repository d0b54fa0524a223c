from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hisparse_ops.triton._launch import launch
from hisparse_ops.triton._owners import owner_table
from hisparse_ops.triton.kernels._owners import FIELDS, TILE
from hisparse_ops.triton.kernels.invalidate_written import CHUNK, invalidate_written_kernel


def invalidate_written(
    owners: Sequence[Tensor], request_state_indices: Tensor, request_ids: Tensor, slots: Tensor
) -> None:
    n, requests = len(slots), len(request_state_indices)
    if n * requests == 0:
        return
    table, groups, _ = owner_table("invalidate_written", owners, slots.device)
    if groups == 0:
        return
    launch(
        invalidate_written_kernel,
        slots.device,
        groups * -(-n // CHUNK),
        table,
        request_state_indices,
        request_ids,
        slots,
        groups,
        requests,
        n,
        request_state_indices.stride(0),
        request_ids.stride(0),
        slots.stride(0),
        FIELDS=FIELDS,
        CHUNK=CHUNK,
        TILE=TILE,
    )
