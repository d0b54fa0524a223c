"""residency_stats: adds hits and misses to stats, from the counts of resolve."""

import triton
import triton.language as tl

from ._variant import STRIDED, Variant, signature

BLOCK = 256

_TYPES = {
    "valid_counts": "*valid",
    "refill_counts": "*refill",
    "resident_counts": "*resident",
    "stats": "*i64",
    "rows": "i32",
    "valid_stride": "i64",
    "refill_stride": "i64",
    "resident_stride": "i64",
    "stats_stride": "i64",
}


@triton.jit
def block_sum(counts, stride, start, rows, BLOCK: tl.constexpr):
    """Sum of a block of counts, in 64 bits."""
    at = start + tl.arange(0, BLOCK)
    count = tl.load(counts + at.to(tl.int64) * stride, mask=at < rows, other=0)
    return tl.sum(count.to(tl.int64), 0)


@triton.jit(do_not_specialize=list(_TYPES))
def residency_stats_kernel(
    valid_counts,
    refill_counts,
    resident_counts,
    stats,
    rows: tl.int32,
    valid_stride: tl.int64,
    refill_stride: tl.int64,
    resident_stride: tl.int64,
    stats_stride: tl.int64,
    HAS_RESIDENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # One program: a step has a few hundred rows, and a sum without atomics is the same every time.
    valid = tl.full((), 0, tl.int64)
    misses = tl.full((), 0, tl.int64)
    for start in range(0, rows, BLOCK):
        valid += block_sum(valid_counts, valid_stride, start, rows, BLOCK)
        misses += block_sum(refill_counts, refill_stride, start, rows, BLOCK)
        if HAS_RESIDENT:
            valid -= block_sum(resident_counts, resident_stride, start, rows, BLOCK)
    tl.store(stats, tl.load(stats) + valid - misses)
    tl.store(stats + stats_stride, tl.load(stats + stats_stride) + misses)


VARIANTS = tuple(
    Variant(
        f"residency_stats-{has}-{ids}",
        residency_stats_kernel,
        signature(_TYPES, valid=f"*{ids}", refill=f"*{ids}", resident=f"*{ids}"),
        {"HAS_RESIDENT": has, "BLOCK": BLOCK},
        # Three lists of counts as they come and in 64 bits: tiles of strided elements.
        BLOCK * 3 * 2 * STRIDED + BLOCK * 8,
    )
    for has in (0, 1)
    for ids in ("i32", "i64")
)
