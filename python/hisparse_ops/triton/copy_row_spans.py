from __future__ import annotations

from torch import Tensor

from hisparse_ops.triton._launch import block_of, launch
from hisparse_ops.triton._pairs import slab_pairs
from hisparse_ops.triton.kernels._pairs import FIELDS
from hisparse_ops.triton.kernels.copy_row_spans import OWNED, copy_row_spans_kernel


def copy_row_spans(sources: list[Tensor], destinations: list[Tensor], spans: Tensor) -> None:
    n = len(spans)
    if n == 0:
        return
    pairs = slab_pairs(
        "copy_row_spans", sources, destinations, spans.device, lambda rows: rows.count
    )
    if pairs is None:
        return
    launch(
        copy_row_spans_kernel,
        spans.device,
        pairs.layers * pairs.parts,
        pairs.lane,
        pairs.table,
        pairs.counts,
        spans,
        pairs.layers,
        pairs.parts,
        n,
        *spans.stride(),
        FIELDS=FIELDS,
        OWNED=OWNED,
        BLOCK=block_of(pairs.lanes),
    )
