"""Gather ops: copy the rows of a refill plan from the host cache into the hot cache."""

from __future__ import annotations

import torch
from torch import Tensor

from hisparse_ops.checks import Checker
from hisparse_ops.registry import define_op

_INT32_MAX = 2**31 - 1

_gather_compact = define_op(
    "gather_compact(Tensor host_cache, Tensor(a!) hot_cache, Tensor host_rows, Tensor hot_rows,"
    " Tensor counts) -> ()",
    family="gather",
)

_gather_plan = define_op(
    "gather_plan(Tensor host_cache, Tensor(a!) hot_cache, Tensor host_rows, Tensor hot_rows,"
    " Tensor miss_mask, *, Tensor(b!)? attention_indices=None, SymInt attention_block_stride=0,"
    " Tensor? request_state_indices=None) -> ()",
    family="gather",
)


def _check_copies(
    op: str, host_cache: Tensor, hot_cache: Tensor, host_rows: Tensor, hot_rows: Tensor
) -> Checker:
    check = Checker(op, hot_cache.device)
    check.slab("host_cache", host_cache, host=True)
    check.slab("hot_cache", hot_cache, written=True)
    check.row_bytes("host_cache", host_cache, "hot_cache", hot_cache)
    check.ids("host_rows", host_rows, 2)
    check.ids("hot_rows", hot_rows, 2)
    _check_grid(check, "hot_rows", hot_rows, host_rows)
    return check


def _check_grid(check: Checker, argument: str, t: Tensor, host_rows: Tensor) -> None:
    check.size(argument, t, 0, "rows", host_rows.shape[0])
    check.size(argument, t, 1, "top_k", host_rows.shape[1])


@_gather_compact.fake
def _check_gather_compact(
    host_cache: Tensor, hot_cache: Tensor, host_rows: Tensor, hot_rows: Tensor, counts: Tensor
) -> None:
    check = _check_copies("gather_compact", host_cache, hot_cache, host_rows, hot_rows)
    check.ids("counts", counts, 1)
    check.size("counts", counts, 0, "rows", host_rows.shape[0])


@_gather_compact.public
def gather_compact(
    host_cache: Tensor, hot_cache: Tensor, host_rows: Tensor, hot_rows: Tensor, counts: Tensor
) -> None:
    """Copy the rows of a compact refill plan from the host cache into the hot cache.

    ``hot[hot_rows[r, c]] = host[host_rows[r, c]]`` for ``c < counts[r]``, where ``hot[p]`` is row
    ``hot_cache[p // block_size, p % block_size]``.

    Parameters
    ----------
    host_cache : Tensor
        ``[rows, width]`` or ``[blocks, block_size, width]``: KV rows in host memory; it may stay on the CPU while the
        op runs on a device. Any dtype and row stride; a row must have as many bytes as a row of ``hot_cache``.
    hot_cache : Tensor
        ``[blocks, block_size, width]`` or ``[rows, width]``, any dtype. The block stride may exceed the page. Written:
        the rows that the plan names; bytes between rows and between pages stay.
    host_rows, hot_rows : Tensor
        ``[rows, top_k]``, int32 or int64, any strides: source row in the host cache and physical row in the hot cache.

        * host row or hot row negative, or hot row past the slab: skipped, nothing is touched;
        * host row past the host cache: the hot row is zeroed, never left stale.
    counts : Tensor
        ``[rows]``, int32 or int64: entries of the row to copy, clamped to ``[0, top_k]``.

    Mutates: ``hot_cache``. Graph-safe: yes. Deterministic: bitwise; of several entries with one hot row the last in
    row-major order counts. Cost: reads and writes one row an entry; entries past their count are not read.

    Raises
    ------
    ValueError
        A dimension, dtype, shape or stride other than above; an argument that overlaps ``hot_cache``. Nothing is
        written then.

    Source: HiSparse in vLLM (``hisparse_gather_compact``).
    """
    _gather_compact.call(host_cache, hot_cache, host_rows, hot_rows, counts)


@_gather_plan.fake
def _check_gather_plan(
    host_cache: Tensor,
    hot_cache: Tensor,
    host_rows: Tensor,
    hot_rows: Tensor,
    miss_mask: Tensor,
    *,
    attention_indices: Tensor | None = None,
    attention_block_stride: int = 0,
    request_state_indices: Tensor | None = None,
) -> None:
    check = _check_copies("gather_plan", host_cache, hot_cache, host_rows, hot_rows)
    check.ids("miss_mask", miss_mask, 2)
    _check_grid(check, "miss_mask", miss_mask, host_rows)
    if attention_indices is not None:
        check.table("attention_indices", attention_indices, torch.int32, written=True)
        _check_grid(check, "attention_indices", attention_indices, host_rows)
        _check_block_stride(check, hot_cache, attention_block_stride)
    if request_state_indices is not None:
        check.ids("request_state_indices", request_state_indices, 1)
        check.size("request_state_indices", request_state_indices, 0, "rows", host_rows.shape[0])


def _check_block_stride(check: Checker, hot_cache: Tensor, attention_block_stride: int) -> None:
    """Pages do not overlap, and the largest attention index, that of the slab's last row, fits int32."""
    blocks, block_size = (1, *hot_cache.shape)[-3:-1]
    room = _INT32_MAX - (block_size - 1)
    high = room // (blocks - 1) if blocks > 1 else _INT32_MAX
    check.range("attention_block_stride", attention_block_stride, block_size, high)


@_gather_plan.public
def gather_plan(
    host_cache: Tensor,
    hot_cache: Tensor,
    host_rows: Tensor,
    hot_rows: Tensor,
    miss_mask: Tensor,
    *,
    attention_indices: Tensor | None = None,
    attention_block_stride: int = 0,
    request_state_indices: Tensor | None = None,
) -> None:
    """Replay a resolved plan by its miss mask, and optionally write this layer's attention indices.

    ``hot[hot_rows[r, c]] = host[host_rows[r, c]]`` where ``miss_mask[r, c] != 0``, with the row rules of
    :func:`gather_compact`; ``attention_indices[r, c] = (p // block_size) * attention_block_stride + p % block_size``
    with ``p = hot_rows[r, c]``, and -1 where ``p`` is not a row of the hot cache.

    Layers of one index group share what :func:`resolve` found: each replays the plan with its own caches.

    Parameters
    ----------
    host_cache : Tensor
        ``[rows, width]`` or ``[blocks, block_size, width]``: KV rows in host memory; it may stay on the CPU while the
        op runs on a device. Any dtype and row stride; a row must have as many bytes as a row of ``hot_cache``.
    hot_cache : Tensor
        ``[blocks, block_size, width]``, any dtype; ``[rows, width]`` counts as one block. The block stride may exceed
        the page. Written: the rows that missed; bytes between rows and between pages stay.
    host_rows, hot_rows : Tensor
        ``[rows, top_k]``, int32 or int64, any strides: host row and physical row of every entry (``resolved_host_rows``
        and ``physical_rows`` of :func:`resolve`).

        * host row or hot row negative, or hot row past the slab: not copied, nothing is touched;
        * host row past the host cache: the hot row is zeroed, never left stale.
    miss_mask : Tensor
        ``[rows, top_k]``, int32 or int64: entries to copy are not 0.
    attention_indices : Tensor, optional
        ``[rows, top_k]``, int32. Written: every element.
    attention_block_stride : int
        Rows between the starts of two pages as attention addresses them, at least the block size of ``hot_cache``
        and small enough that every index fits int32. Used with ``attention_indices`` only.
    request_state_indices : Tensor, optional
        ``[rows]``, int32 or int64: state row of each batch row. Negative = padding: nothing is copied and the row's
        attention indices are -1.

    Mutates: ``hot_cache``, ``attention_indices``. Graph-safe: yes. Deterministic: bitwise; of several entries with
    one hot row the last in row-major order counts. Cost: reads ``rows * top_k`` entries; reads and writes one KV row
    a miss.

    Raises
    ------
    ValueError
        A dimension, dtype, shape or stride other than above; an argument that overlaps ``hot_cache`` or
        ``attention_indices``. Nothing is written then.

    Source: HiSparse in vLLM (``hisparse_gather_plan``).
    """
    _gather_plan.call(
        host_cache,
        hot_cache,
        host_rows,
        hot_rows,
        miss_mask,
        attention_indices=attention_indices,
        attention_block_stride=attention_block_stride,
        request_state_indices=request_state_indices,
    )
