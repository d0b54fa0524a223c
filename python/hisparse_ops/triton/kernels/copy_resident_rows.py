"""copy_resident_rows: staging[i] = source[row_ids[i]]."""

import triton
import triton.language as tl

from ._rows import copy_lanes, row_offset
from ._variant import row_variants

_TYPES = {
    "source": "*lane",
    "row_ids": "*id",
    "staging": "*lane",
    "n": "i32",
    "lanes": "i32",
    "ids_stride": "i64",
    "count": "i64",
    "block_rows": "i64",
    "block_stride": "i64",
    "row_stride": "i64",
    "to_block_rows": "i64",
    "to_block_stride": "i64",
    "to_row_stride": "i64",
}


@triton.jit(do_not_specialize=list(_TYPES))
def copy_resident_rows_kernel(
    source,
    row_ids,
    staging,
    n: tl.int32,
    lanes: tl.int32,
    ids_stride: tl.int64,
    count: tl.int64,
    block_rows: tl.int64,
    block_stride: tl.int64,
    row_stride: tl.int64,
    to_block_rows: tl.int64,
    to_block_stride: tl.int64,
    to_row_stride: tl.int64,
    ROW0: tl.constexpr,
    BLOCK: tl.constexpr,
):
    for i in range(tl.program_id(0), n, tl.num_programs(0)):
        row = tl.load(row_ids + tl.cast(i, tl.int64) * ids_stride)
        inside = (row >= 0) & (row < count)
        if ROW0:
            row = tl.where(inside, row, 0)
            inside = row >= 0
        if inside:
            copy_lanes(
                source + row_offset(row, block_rows, block_stride, row_stride),
                staging + row_offset(i, to_block_rows, to_block_stride, to_row_stride),
                lanes,
                BLOCK,
            )


VARIANTS = tuple(
    variant
    for row0 in (0, 1)
    for variant in row_variants(
        f"copy_resident_rows-{'row0' if row0 else 'keep'}",
        copy_resident_rows_kernel,
        _TYPES,
        {"ROW0": row0},
    )
)
