"""From the indexer's positions to what attention reads, where no resolver is needed: all KV is on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Selection:
    """Rows to attend to, one query row per entry: computed once for an index group and used by all its layers."""

    indices: Tensor
    """``[rows, top_k]``, prefix layout: the valid ones first, in column order, then -1."""
    counts: Tensor
    """``[rows]`` int32: how many are valid."""


def select(positions: Tensor, tables: Tensor, requests: Tensor, block_size: int) -> Selection:
    """Physical rows of logical ``positions`` through block tables, in prefix layout.

    Parameters
    ----------
    positions : Tensor
        ``[rows, top_k]``: positions in their request; negative = unused.
    tables : Tensor
        ``[requests, pages]``: block of each page. Block 0 and negative blocks hold nothing.
    requests : Tensor
        ``[rows]``: row of ``tables`` for each query row.
    block_size : int
        Rows of a page.
    """
    wanted = positions >= 0
    pages = torch.where(wanted, positions, 0).long() // block_size
    inside = pages < tables.shape[1]
    pages = pages.clamp(max=max(tables.shape[1] - 1, 0))
    blocks = tables.long()[requests.long()[:, None].expand_as(pages), pages]
    valid = wanted & inside & (blocks > 0)
    rows = torch.where(valid, blocks * block_size + positions.long() % block_size, -1)
    order = torch.argsort(~valid, dim=1, stable=True)
    return Selection(rows.gather(1, order).int(), valid.sum(1, dtype=torch.int32))
