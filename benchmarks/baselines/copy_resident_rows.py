from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.baselines._rows import flat, row_copy_limits
from benchmarks.measure import Contender, on_copy
from hisparse_ops.checks import num_rows
from hisparse_ops.testing.buffers import clone_args


def with_torch(source: Tensor, row_ids: Tensor, staging: Tensor, invalid: str) -> None:
    # A layer of a shared slab has no flat view: the page and the row in it are two indices.
    ids = row_ids if invalid == "keep" else row_ids.clamp(min=0)
    rows = torch.arange(len(ids))
    if invalid == "keep":
        rows = (ids >= 0).nonzero()[:, 0]
        ids = ids[rows]
    page_size = source.shape[1]
    taken = source[ids // page_size, ids % page_size]
    flat(staging).index_copy_(0, rows, taken)


def contenders(args: dict[str, Any]) -> list[Contender]:
    mine = clone_args(args)
    ids = mine["row_ids"]
    inside = (ids >= 0) & (ids < num_rows(mine["source"]))
    rows = torch.arange(len(ids))
    if args["invalid"] == "keep":
        ids, rows = ids[inside], rows[inside]
    else:
        ids = ids.where(inside, 0)
    return [
        on_copy("copy_resident_rows", "torch", args, with_torch),
        *row_copy_limits(mine["source"], ids, mine["staging"], rows),
    ]
