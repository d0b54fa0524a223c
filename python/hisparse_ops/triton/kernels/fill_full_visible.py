"""fill_full_visible: row v of the table is 0 .. v - 1, then -1."""

import triton
import triton.language as tl

from ._variant import Variant

BLOCK = 1024

_TYPES = {
    "table": "*i32",
    "rows": "i32",
    "columns": "i32",
    "row_stride": "i64",
}


@triton.jit(do_not_specialize=list(_TYPES))
def fill_full_visible_kernel(
    table,
    rows: tl.int32,
    columns: tl.int32,
    row_stride: tl.int64,
    BLOCK: tl.constexpr,
):
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK)
            visible = tl.where(column < row, column, -1)
            tl.store(
                table + tl.cast(row, tl.int64) * row_stride + column, visible, mask=column < columns
            )


VARIANTS = (
    Variant(
        "fill_full_visible",
        fill_full_visible_kernel,
        _TYPES,
        {"BLOCK": BLOCK},
        2 * BLOCK * (4 + 4) + 64,
    ),
)
