"""gather_plan: hot[hot_rows[r, c]] = host[host_rows[r, c]] where miss_mask[r, c] != 0, and attention indices."""

import triton
import triton.language as tl

from ._variant import STRIDED, row_variants
from .gather_compact import refill_row

COLUMNS = 256

_TYPES = {
    "host": "*lane",
    "hot": "*lane",
    "host_rows": "*id",
    "hot_rows": "*id",
    "miss_mask": "*id",
    "attention": "*i32",
    "states": "*id",
    "rows": "i32",
    "top_k": "i32",
    "lanes": "i32",
    "ids_row_stride": "i64",
    "ids_col_stride": "i64",
    "hot_ids_row_stride": "i64",
    "hot_ids_col_stride": "i64",
    "mask_row_stride": "i64",
    "mask_col_stride": "i64",
    "attention_row_stride": "i64",
    "states_stride": "i64",
    "attention_block_stride": "i64",
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
def attention_columns(
    attention,
    hot_rows,
    first,
    top_k,
    hot_ids_col_stride,
    hot_count,
    hot_block_rows,
    attention_block_stride,
    is_padding,
    COLUMNS: tl.constexpr,
):
    """Attention indices of COLUMNS entries of a row from column ``first`` on."""
    column = first + tl.arange(0, COLUMNS)
    inside = column < top_k
    row = tl.load(hot_rows + column.to(tl.int64) * hot_ids_col_stride, mask=inside, other=-1)
    usable = (row >= 0) & (row < hot_count)
    usable = usable & (is_padding == 0)
    # A row of the slab fits int32, so the division can be 32 bit.
    known = tl.where(usable, row, 0).to(tl.int32)
    block = known // hot_block_rows.to(tl.int32)
    index = known + block * (attention_block_stride - hot_block_rows).to(tl.int32)
    tl.store(attention + column, tl.where(usable, index, -1), mask=inside)


@triton.jit(do_not_specialize=list(_TYPES))
def gather_plan_kernel(
    host,
    hot,
    host_rows,
    hot_rows,
    miss_mask,
    attention,
    states,
    rows: tl.int32,
    top_k: tl.int32,
    lanes: tl.int32,
    ids_row_stride: tl.int64,
    ids_col_stride: tl.int64,
    hot_ids_row_stride: tl.int64,
    hot_ids_col_stride: tl.int64,
    mask_row_stride: tl.int64,
    mask_col_stride: tl.int64,
    attention_row_stride: tl.int64,
    states_stride: tl.int64,
    attention_block_stride: tl.int64,
    host_count: tl.int64,
    host_block_rows: tl.int64,
    host_block_stride: tl.int64,
    host_row_stride: tl.int64,
    hot_count: tl.int64,
    hot_block_rows: tl.int64,
    hot_block_stride: tl.int64,
    hot_row_stride: tl.int64,
    HAS_ATTENTION: tl.constexpr,
    HAS_STATES: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # A piece of work is COLUMNS entries of one row.
    pieces = (top_k + COLUMNS - 1) // COLUMNS
    for piece in range(
        tl.program_id(0).to(tl.int64), pieces.to(tl.int64) * rows, tl.num_programs(0)
    ):
        row = piece // pieces
        first = tl.cast((piece - row * pieces) * COLUMNS, tl.int32)
        is_padding = 0
        if HAS_STATES:
            is_padding = (tl.load(states + row * states_stride) < 0).to(tl.int32)
        hot_ids = hot_rows + row * hot_ids_row_stride
        if HAS_ATTENTION:
            attention_columns(
                attention + row * attention_row_stride,
                hot_ids,
                first,
                top_k,
                hot_ids_col_stride,
                hot_count,
                hot_block_rows,
                attention_block_stride,
                is_padding,
                COLUMNS,
            )
        if is_padding == 0:
            for column in range(first, min(first + COLUMNS, top_k)):
                at = tl.cast(column, tl.int64)
                if tl.load(miss_mask + row * mask_row_stride + at * mask_col_stride) != 0:
                    refill_row(
                        host,
                        hot,
                        tl.load(host_rows + row * ids_row_stride + at * ids_col_stride),
                        tl.load(hot_ids + at * hot_ids_col_stride),
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


def _variants(has_attention, has_states):
    return row_variants(
        f"gather_plan-{has_attention}{has_states}",
        gather_plan_kernel,
        _TYPES,
        {"HAS_ATTENTION": has_attention, "HAS_STATES": has_states, "COLUMNS": COLUMNS},
        # Rows as they come and in 32 bits, what they are divided into, and masks: tiles of strided elements.
        other_bytes=has_attention * COLUMNS * 12 * STRIDED,
    )


VARIANTS = (*_variants(0, 0), *_variants(1, 0), *_variants(0, 1), *_variants(1, 1))
