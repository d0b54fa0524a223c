"""scatter_rows: caches[j][slots[i]] = rows[j][i] for every cache j of a list."""

import triton
import triton.language as tl

from ._rows import copy_lanes, row_offset
from ._variant import row_variants

FIELDS = 8
"""Numbers of a table's item: both addresses, lanes, the rows' stride, the cache's count, block_rows and strides."""

_TYPES = {
    "lane": "*lane",
    "table": "*i64",
    "slots": "*id",
    "n": "i32",
    "items": "i32",
    "slots_stride": "i64",
}


@triton.jit(do_not_specialize=list(_TYPES))
def scatter_rows_kernel(
    lane,
    table,
    slots,
    n: tl.int32,
    items: tl.int32,
    slots_stride: tl.int64,
    FIELDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # Every program goes through whole items, so a slot is read once for each of them.
    for work in range(tl.program_id(0), n * items, tl.num_programs(0)):
        i = tl.cast(work // items, tl.int64)
        item = table + tl.cast(work % items, tl.int64) * FIELDS
        slot = tl.load(slots + i * slots_stride)
        if (slot >= 0) & (slot < tl.load(item + 4)):
            source = tl.cast(tl.load(item), lane.dtype) + i * tl.load(item + 3)
            cache = tl.cast(tl.load(item + 1), lane.dtype)
            to = cache + row_offset(slot, tl.load(item + 5), tl.load(item + 6), tl.load(item + 7))
            copy_lanes(source, to, tl.load(item + 2).to(tl.int32), BLOCK)


VARIANTS = row_variants(
    "scatter_rows",
    scatter_rows_kernel,
    _TYPES,
    {"FIELDS": FIELDS},
)
