"""scatter_c8: cache[slots[i]] = nope[i] | rope[i] | scales[i], in the order of the layout."""

import triton
import triton.language as tl

from ._rows import copy_lanes, row_offset
from ._variant import LANES, Variant, signature

# Bytes of the parts of a row.
NOPE, ROPE, SCALES = 512, 128, 16
BLOCKS = {"*i32": 128, "*i16": 256, "*i8": 512}
"""The latent in one step, the rope and the scales in one each."""

_TYPES = {
    "nope": "*lane",
    "rope": "*lane",
    "scales": "*lane",
    "slots": "*id",
    "cache": "*lane",
    "n": "i32",
    "rope_at": "i32",
    "scales_at": "i32",
    "slots_stride": "i64",
    "nope_stride": "i64",
    "rope_stride": "i64",
    "scales_stride": "i64",
    "count": "i64",
    "block_rows": "i64",
    "block_stride": "i64",
    "row_stride": "i64",
}


@triton.jit(do_not_specialize=list(_TYPES))
def scatter_c8_kernel(
    nope,
    rope,
    scales,
    slots,
    cache,
    n: tl.int32,
    rope_at: tl.int32,
    scales_at: tl.int32,
    slots_stride: tl.int64,
    nope_stride: tl.int64,
    rope_stride: tl.int64,
    scales_stride: tl.int64,
    count: tl.int64,
    block_rows: tl.int64,
    block_stride: tl.int64,
    row_stride: tl.int64,
    BLOCK: tl.constexpr,
):
    for i in range(tl.program_id(0), n, tl.num_programs(0)):
        token = tl.cast(i, tl.int64)
        slot = tl.load(slots + token * slots_stride)
        if (slot >= 0) & (slot < count):
            row = cache + row_offset(slot, block_rows, block_stride, row_stride)
            # 512, 128 and 16 bytes are BLOCK, BLOCK / 4 and BLOCK / 32 lanes.
            copy_lanes(nope + token * nope_stride, row, BLOCK, BLOCK)
            copy_lanes(rope + token * rope_stride, row + rope_at, BLOCK // 4, BLOCK // 4)
            copy_lanes(scales + token * scales_stride, row + scales_at, BLOCK // 32, BLOCK // 32)


VARIANTS = tuple(
    Variant(
        f"scatter_c8-{lane[1:]}-{ids[1:]}",
        scatter_c8_kernel,
        signature(_TYPES, lane=lane, id=ids),
        {"BLOCK": BLOCKS[lane]},
        2 * (NOPE + ROPE + SCALES),
    )
    for lane in LANES
    for ids in ("*i32", "*i64")
)
