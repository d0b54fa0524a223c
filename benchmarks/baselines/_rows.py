"""The limit of the byte movers: a plain loop over rows whose addresses are known."""

from __future__ import annotations

from ctypes import c_int64, c_void_p

import torch
from torch import Tensor

from benchmarks import native
from benchmarks.measure import Contender
from hisparse_ops.checks import row_bytes


def addresses(slab: Tensor, rows: Tensor) -> Tensor:
    """Addresses of rows of a slab, ``[rows, width]`` or ``[blocks, block_size, width]``."""
    rows = rows.long()
    if slab.dim() == 2:
        offset = rows * slab.stride(0)
    else:
        offset = rows // slab.shape[1] * slab.stride(0) + rows % slab.shape[1] * slab.stride(1)
    return slab.data_ptr() + offset * slab.element_size()


def row_copy_limits(
    source: Tensor, source_rows: Tensor, target: Tensor, rows: Tensor, read: int | None = None
) -> list[Contender]:
    """The same rows by memcpy, and by memcpy with prefetch; the faster one is the limit.

    ``read``: bytes of a source row that must be read, where that is more than what is written.
    """
    start, end = addresses(source, source_rows), addresses(target, rows)
    width = row_bytes(target)
    library = native.library("limits")
    arguments = (
        c_void_p(start.data_ptr()),
        c_void_p(end.data_ptr()),
        c_int64(len(start)),
        c_int64(width),
        c_int64(width if read is None else read),
    )
    keep = (source, target, start, end)

    def contender(name: str, function: str) -> Contender:
        call = getattr(library, function)
        return Contender(name, lambda: (call(*arguments), keep)[0], is_limit=True)

    return [contender("row copy", "copy_rows"), contender("row copy, prefetch", "copy_rows_ahead")]


def flat(slab: Tensor) -> Tensor:
    """A slab as ``[rows, width]``; a copy would not be written, so it must be a view."""
    return slab if slab.dim() == 2 else slab.view(-1, slab.shape[-1])


def selected(counts: Tensor, top_k: int) -> Tensor:
    """``[rows, top_k]``: entries before their row's count."""
    return torch.arange(top_k) < counts[:, None]
