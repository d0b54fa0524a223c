from __future__ import annotations

from torch import Tensor

from hisparse_ops.triton._launch import block_of, launch
from hisparse_ops.triton._pairs import slab_pairs
from hisparse_ops.triton.kernels._pairs import FIELDS
from hisparse_ops.triton.kernels.copy_pages import copy_pages_kernel


def copy_pages(sources: list[Tensor], destinations: list[Tensor], page_pairs: Tensor) -> None:
    n = len(page_pairs)
    if n == 0:
        return
    pairs = slab_pairs(
        "copy_pages",
        sources,
        destinations,
        page_pairs.device,
        lambda rows: rows.count // rows.block_rows,
    )
    if pairs is None:
        return
    launch(
        copy_pages_kernel,
        page_pairs.device,
        pairs.layers * pairs.parts,
        pairs.lane,
        pairs.table,
        pairs.counts,
        page_pairs,
        pairs.layers,
        pairs.parts,
        n,
        *page_pairs.stride(),
        FIELDS=FIELDS,
        BLOCK=block_of(pairs.lanes),
    )
