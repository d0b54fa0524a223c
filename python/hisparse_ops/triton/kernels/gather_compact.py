"""gather_compact: hot[hot_rows[r, c]] = host[host_rows[r, c]] for c < counts[r]."""

import triton
import triton.language as tl

from ._rows import copy_lanes, row_offset, zero_lanes
from ._variant import STRIDED, row_variants

COUNTS = 256

_TYPES = {
    "host": "*lane",
    "hot": "*lane",
    "host_rows": "*id",
    "hot_rows": "*id",
    "counts": "*id",
    "rows": "i32",
    "top_k": "i32",
    "lanes": "i32",
    "ids_row_stride": "i64",
    "ids_col_stride": "i64",
    "hot_ids_row_stride": "i64",
    "hot_ids_col_stride": "i64",
    "counts_stride": "i64",
    "host_count": "i64",
    "host_block_rows": "i64",
    "host_block_stride": "i64",
    "host_row_stride": "i64",
    "hot_count": "i64",
    "hot_block_rows": "i64",
    "hot_block_stride": "i64",
    "hot_row_stride": "i64",
}


@triton.jit
def most_columns(counts, counts_stride, rows, top_k, COUNTS: tl.constexpr):
    """The largest count, clamped to [0, top_k]: no column from there on has an entry."""
    most = 0
    for start in range(0, rows, COUNTS):
        at = start + tl.arange(0, COUNTS)
        count = tl.load(counts + at.to(tl.int64) * counts_stride, mask=at < rows, other=0)
        most = max(most, tl.max(tl.minimum(count, top_k).to(tl.int32), 0))
    return most


@triton.jit
def refill_row(
    host,
    hot,
    host_row,
    hot_row,
    lanes,
    host_count,
    host_block_rows,
    host_block_stride,
    host_row_stride,
    hot_count,
    hot_block_rows,
    hot_block_stride,
    hot_row_stride,
    BLOCK: tl.constexpr,
):
    """One entry of a plan; a row past the host cache is a row of zeros."""
    if (host_row >= 0) & (hot_row >= 0) & (hot_row < hot_count):
        to = hot + row_offset(hot_row, hot_block_rows, hot_block_stride, hot_row_stride)
        if host_row < host_count:
            source = host + row_offset(
                host_row, host_block_rows, host_block_stride, host_row_stride
            )
            copy_lanes(source, to, lanes, BLOCK)
        else:
            zero_lanes(to, lanes, BLOCK)


@triton.jit(do_not_specialize=list(_TYPES))
def gather_compact_kernel(
    host,
    hot,
    host_rows,
    hot_rows,
    counts,
    rows: tl.int32,
    top_k: tl.int32,
    lanes: tl.int32,
    ids_row_stride: tl.int64,
    ids_col_stride: tl.int64,
    hot_ids_row_stride: tl.int64,
    hot_ids_col_stride: tl.int64,
    counts_stride: tl.int64,
    host_count: tl.int64,
    host_block_rows: tl.int64,
    host_block_stride: tl.int64,
    host_row_stride: tl.int64,
    hot_count: tl.int64,
    hot_block_rows: tl.int64,
    hot_block_stride: tl.int64,
    hot_row_stride: tl.int64,
    COUNTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # Columns first: plans fill their rows from column 0 on, so the programs share what there is.
    columns = most_columns(counts, counts_stride, rows, top_k, COUNTS)
    entries = columns.to(tl.int64) * rows
    for entry in range(tl.program_id(0).to(tl.int64), entries, tl.num_programs(0)):
        column = entry // rows
        row = entry - column * rows
        if column < tl.load(counts + row * counts_stride):
            refill_row(
                host,
                hot,
                tl.load(host_rows + row * ids_row_stride + column * ids_col_stride),
                tl.load(hot_rows + row * hot_ids_row_stride + column * hot_ids_col_stride),
                lanes,
                host_count,
                host_block_rows,
                host_block_stride,
                host_row_stride,
                hot_count,
                hot_block_rows,
                hot_block_stride,
                hot_row_stride,
                BLOCK,
            )


VARIANTS = row_variants(
    "gather_compact",
    gather_compact_kernel,
    _TYPES,
    {"COUNTS": COUNTS},
    other_bytes=COUNTS * 2 * STRIDED + 64,  # counts as they come and as they are used
)
