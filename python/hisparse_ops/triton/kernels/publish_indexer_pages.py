"""publish_indexer_pages: slab page logical_blocks[i] = source page source_blocks[i], or its first rows."""

import triton
import triton.language as tl

from ._rows import copy_lanes
from ._variant import row_variants

_TYPES = {
    "source": "*lane",
    "source_blocks": "*id",
    "logical_blocks": "*id",
    "slab": "*lane",
    "row_counts": "*id",
    "n": "i32",
    "parts": "i32",
    "lanes": "i32",
    "page_rows": "i64",
    "source_ids_stride": "i64",
    "logical_ids_stride": "i64",
    "counts_stride": "i64",
    "source_pages": "i64",
    "source_page_stride": "i64",
    "source_row_stride": "i64",
    "slab_pages": "i64",
    "slab_page_stride": "i64",
    "slab_row_stride": "i64",
}


@triton.jit(do_not_specialize=list(_TYPES))
def publish_indexer_pages_kernel(
    source,
    source_blocks,
    logical_blocks,
    slab,
    row_counts,
    n: tl.int32,
    parts: tl.int32,
    lanes: tl.int32,
    page_rows: tl.int64,
    source_ids_stride: tl.int64,
    logical_ids_stride: tl.int64,
    counts_stride: tl.int64,
    source_pages: tl.int64,
    source_page_stride: tl.int64,
    source_row_stride: tl.int64,
    slab_pages: tl.int64,
    slab_page_stride: tl.int64,
    slab_row_stride: tl.int64,
    HAS_COUNTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # A page of the slab belongs to one part, which goes through the list in order: the later of two entries wins.
    for part in range(tl.program_id(0), parts, tl.num_programs(0)):
        for i in range(0, n):
            at = tl.cast(i, tl.int64)
            page = tl.load(source_blocks + at * source_ids_stride).to(tl.int64)
            to = tl.load(logical_blocks + at * logical_ids_stride).to(tl.int64)
            if (page >= 1) & (page < source_pages) & (to >= 1) & (to < slab_pages):
                if to % parts == part:
                    rows = page_rows
                    if HAS_COUNTS:
                        count = tl.load(row_counts + at * counts_stride).to(tl.int64)
                        rows = tl.minimum(count, page_rows)
                    read = source + page * source_page_stride
                    write = slab + to * slab_page_stride
                    row = tl.full((), 0, tl.int64)
                    while row < rows:
                        copy_lanes(
                            read + row * source_row_stride,
                            write + row * slab_row_stride,
                            lanes,
                            BLOCK,
                        )
                        row += 1


VARIANTS = tuple(
    variant
    for counts in (0, 1)
    for variant in row_variants(
        f"publish_indexer_pages-{counts}",
        publish_indexer_pages_kernel,
        _TYPES,
        {"HAS_COUNTS": counts},
    )
)
