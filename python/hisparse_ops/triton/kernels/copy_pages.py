"""copy_pages: destination page d = source page s for every pair (s, d), in order; page 0 is null on both sides."""

import triton
import triton.language as tl

from ._pairs import FIELDS, copy_pair_row
from ._variant import row_variants

_TYPES = {
    "lane": "*lane",
    "table": "*i64",
    "counts": "*i64",
    "pairs": "*id",
    "layers": "i32",
    "parts": "i32",
    "n": "i32",
    "row_stride": "i64",
    "col_stride": "i64",
}


@triton.jit(do_not_specialize=list(_TYPES))
def copy_pages_kernel(
    lane,
    table,
    counts,
    pairs,
    layers: tl.int32,
    parts: tl.int32,
    n: tl.int32,
    row_stride: tl.int64,
    col_stride: tl.int64,
    FIELDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    for piece in range(tl.program_id(0), layers * parts, tl.num_programs(0)):
        layer = tl.cast(piece // parts, tl.int64)
        part = tl.cast(piece % parts, tl.int64)
        item = table + layer * FIELDS
        pages, to_pages = tl.load(counts + 2 * layer), tl.load(counts + 2 * layer + 1)
        page_rows = tl.load(item + 3)
        for i in range(0, n):
            pair = pairs + tl.cast(i, tl.int64) * row_stride
            page = tl.load(pair).to(tl.int64)
            to = tl.load(pair + col_stride).to(tl.int64)
            if (page >= 1) & (page < pages) & (to >= 1) & (to < to_pages):
                if to % parts == part:
                    row = page * page_rows
                    end = row + page_rows
                    shift = to * page_rows - row
                    while row < end:
                        copy_pair_row(item, lane, row, row + shift, BLOCK)
                        row += 1


VARIANTS = row_variants("copy_pages", copy_pages_kernel, _TYPES, {"FIELDS": FIELDS})
