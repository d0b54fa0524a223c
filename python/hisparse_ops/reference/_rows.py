"""Rows of a slab for the oracles that move bytes."""

import torch
from torch import Tensor


def num_rows(t: Tensor) -> int:
    return len(t) if t.dim() == 2 else t.shape[0] * t.shape[1]


def row(t: Tensor, index: int) -> Tensor:
    """The bytes of a row, counted over pages where there are any; a view."""
    if t.dim() == 2:
        return t[index].view(torch.uint8)
    page, offset = divmod(index, t.shape[1])
    return t[page, offset].view(torch.uint8)
