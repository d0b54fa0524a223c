"""Value checks of the transfer ops that move rows, spans, pages and slots."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hisparse_ops.checks import num_rows
from hisparse_ops.validation._values import INT32_MAX, Values, check_slots, on_host, validates


@validates("pad_slots")
def _pad_slots(slots: Tensor, valid_count: Tensor, out: Tensor) -> None:
    """Only slots below the count are kept, so only they count."""
    check = Values("pad_slots")
    count, n = on_host(valid_count), len(slots)
    check.within("valid_count", count, 0, n + 1, f"between 0 and {n}")
    kept, limit = on_host(slots)[: int(count)], INT32_MAX + 1
    if out.dtype == torch.int64:
        check.reject("slots", kept, kept < -1, "be -1 or a slot")
    else:
        check.within("slots", kept, -1, limit, "-1 or a slot that int32 holds")
    check.unique("slots", kept, kept >= 0, "name each row once")


@validates("copy_resident_rows")
def _copy_resident_rows(source: Tensor, row_ids: Tensor, staging: Tensor, *, invalid: str) -> None:
    """-1 is a row that is not resident."""
    Values("copy_resident_rows").ids("row_ids", row_ids, num_rows(source), "a row of source")


@validates("copy_row_spans")
def _copy_row_spans(
    sources: Sequence[Tensor], destinations: Sequence[Tensor], spans: Tensor
) -> None:
    """A span with count 0 is padding. The others lie whole in every layer: a row that is left out is a row that
    is not mirrored. No two write one row."""
    check = Values("copy_row_spans")
    table = on_host(spans)
    check.reject("spans", table, _only(table, 2) & (table < 0), "be a count of rows, at least 0")
    live = (table[:, 2] > 0)[:, None]
    for layer, (source, destination) in enumerate(zip(sources, destinations, strict=True)):
        for column, name, rows in (
            (0, f"sources[{layer}]", num_rows(source)),
            (1, f"destinations[{layer}]", num_rows(destination)),
        ):
            start = _only(table, column) & live
            past = (table < 0) | (table > (rows - table[:, 2])[:, None])
            rule = f"start a span that ends within the {rows} rows of {name}"
            check.reject("spans", table, start & past, rule)
    _check_spans_apart(check, table)


def _only(table: Tensor, column: int) -> Tensor:
    """A mask of one column."""
    mask = torch.zeros_like(table, dtype=torch.bool)
    mask[:, column] = True
    return mask


def _check_spans_apart(check: Values, table: Tensor) -> None:
    live = (table[:, 2] > 0).nonzero()[:, 0]
    order = live[torch.sort(table[live, 1], stable=True).indices]
    start, end = table[order, 1], table[order, 1] + table[order, 2]
    if len(order) > 1:
        reach = torch.cummax(end, 0).values
        inside = (start[1:] < reach[:-1]).nonzero()[:, 0]
        if len(inside):
            at = int(order[1:][inside].min())
            rule = "start past the rows that other spans write"
            check.fail("spans", (at, 1), rule, int(table[at, 1]))


@validates("copy_pages")
def _copy_pages(
    sources: Sequence[Tensor], destinations: Sequence[Tensor], page_pairs: Tensor
) -> None:
    """Block 0 and -1 are null; a page is written once."""
    check = Values("copy_pages")
    pairs = on_host(page_pairs)
    for layer, (source, destination) in enumerate(zip(sources, destinations, strict=True)):
        for column, name, pages in (
            (0, f"sources[{layer}]", len(source)),
            (1, f"destinations[{layer}]", len(destination)),
        ):
            what = f"a page of {name}, below {pages}, or null (0 or -1)"
            check.within("page_pairs", pairs, -1, pages, what, _only(pairs, column))
    copied = (pairs > 0).all(1, keepdim=True) & _only(pairs, 1)
    check.unique("page_pairs", pairs, copied, "write each page once")


@validates("publish_indexer_pages")
def _publish_indexer_pages(
    source: Tensor,
    source_blocks: Tensor,
    logical_blocks: Tensor,
    slab: Tensor,
    *,
    row_counts: Tensor | None = None,
) -> None:
    """Block 0 and -1 are null on both sides; a logical block is published once."""
    check = Values("publish_indexer_pages")
    read, written = on_host(source_blocks), on_host(logical_blocks)
    for argument, blocks, name, pages in (
        ("source_blocks", read, "source", len(source)),
        ("logical_blocks", written, "slab", len(slab)),
    ):
        what = f"a block of {name}, below {pages}, or null (0 or -1)"
        check.within(argument, blocks, -1, pages, what)
    published = (read > 0) & (written > 0)
    if row_counts is not None:
        counts, size = on_host(row_counts), slab.shape[1]
        what = f"between 0 and block_size = {size}"
        check.within("row_counts", counts, 0, size + 1, what, published)
    check.unique("logical_blocks", written, published, "name each block once")


@validates("scatter_rows")
def _scatter_rows(rows: Sequence[Tensor], slots: Tensor, caches: Sequence[Tensor]) -> None:
    check_slots(Values("scatter_rows"), "slots", slots, num_rows(caches[0]))
