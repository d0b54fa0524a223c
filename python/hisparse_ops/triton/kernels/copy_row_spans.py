"""copy_row_spans: destination rows [d, d + n) = source rows [s, s + n) for every span (s, d, n), in order."""

import triton
import triton.language as tl

from ._pairs import FIELDS, copy_pair_row
from ._variant import row_variants

OWNED = 64
"""Destination rows in a row that one owner has."""

_TYPES = {
    "lane": "*lane",
    "table": "*i64",
    "counts": "*i64",
    "spans": "*id",
    "layers": "i32",
    "parts": "i32",
    "n": "i32",
    "row_stride": "i64",
    "col_stride": "i64",
}


@triton.jit
def first_row(start, to):
    """Rows of a span before the first that both sides can have."""
    # The lowest int64 has no negation; one row nearer is still further below row 0 than a span can reach.
    lowest = -0x7FFFFFFFFFFFFFFF
    return tl.maximum(tl.maximum(-tl.maximum(start, lowest), -tl.maximum(to, lowest)), 0)


@triton.jit
def end_row(start, to, rows, count, to_count):
    """Rows of a span up to the first that one side cannot have."""
    # Where the difference would pass int64 the span starts so far below row 0 that its length is the bound.
    left = count - tl.maximum(start, count - 0x7FFFFFFFFFFFFFFF)
    to_left = to_count - tl.maximum(to, to_count - 0x7FFFFFFFFFFFFFFF)
    return tl.minimum(rows, tl.minimum(left, to_left))


@triton.jit(do_not_specialize=list(_TYPES))
def copy_row_spans_kernel(
    lane,
    table,
    counts,
    spans,
    layers: tl.int32,
    parts: tl.int32,
    n: tl.int32,
    row_stride: tl.int64,
    col_stride: tl.int64,
    FIELDS: tl.constexpr,
    OWNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    for piece in range(tl.program_id(0), layers * parts, tl.num_programs(0)):
        layer = tl.cast(piece // parts, tl.int64)
        part = tl.cast(piece % parts, tl.int64)
        item = table + layer * FIELDS
        count, to_count = tl.load(counts + 2 * layer), tl.load(counts + 2 * layer + 1)
        for i in range(0, n):
            span = spans + tl.cast(i, tl.int64) * row_stride
            start = tl.load(span).to(tl.int64)
            to = tl.load(span + col_stride).to(tl.int64)
            rows = tl.load(span + 2 * col_stride).to(tl.int64)
            k = first_row(start, to)
            end = end_row(start, to, rows, count, to_count)
            while k < end:
                # On to the next destination row of this owner.
                chunk = (to + k) // OWNED
                if chunk % parts == part:
                    copy_pair_row(item, lane, start + k, to + k, BLOCK)
                    k += 1
                else:
                    k = (chunk + 1) * OWNED - to


VARIANTS = row_variants(
    "copy_row_spans", copy_row_spans_kernel, _TYPES, {"FIELDS": FIELDS, "OWNED": OWNED}
)
