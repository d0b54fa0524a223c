"""quantize_scatter_c8: cache row slots[i] = E4M3 codes of latent[i] | rope[i] | scales, in the order of the layout.

E4M3 by integer arithmetic on the bits of float32: the 910B has no fp8 type, and this way every backend and the
interpreter give the same bits.
"""

import triton
import triton.language as tl

from ._rows import copy_lanes, row_offset
from ._variant import Variant, signature

TILE = 128
TILES = 4

_TYPES = {
    "latent": "*latent",
    "rope": "*i8",
    "slots": "*id",
    "cache": "*i8",
    "n": "i32",
    "rope_at": "i32",
    "scales_at": "i32",
    "slots_stride": "i64",
    "latent_stride": "i64",
    "rope_stride": "i64",
    "count": "i64",
    "block_rows": "i64",
    "block_stride": "i64",
    "row_stride": "i64",
}


@triton.jit
def as_bytes(code):
    """Numbers 0 .. 255 as int8 with the same bits, without relying on what a cast does beyond its range."""
    return (code - ((code & 0x80) << 1)).to(tl.int8)


@triton.jit
def tile_scale(magnitude, POW2: tl.constexpr):
    """Scale of a tile from the bits of its magnitudes; infinities and NaN do not count.

    Every value is divided, not only the largest: the order stays, so the largest quotient is that of the largest value,
    and the compiler for Ascend takes no rounded quotient of a single number.
    """
    finite = tl.where(magnitude < 0x7F800000, magnitude, 0).to(tl.float32, bitcast=True)
    ratio = tl.max(tl.div_rn(finite, 448.0).to(tl.int32, bitcast=True), 0)
    if POW2:
        least = 0x38D1B717  # 1e-4
        bits = (tl.maximum(ratio, least) + 0x7FFFFF) & 0x7F800000
    else:
        bits = tl.maximum(ratio, (127 - 116) << 23)  # 2^-116
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def encode(value, scale):
    """E4M3FN codes, 0 .. 255, of ``value / scale``: nearest, ties to even, at most 448 in magnitude."""
    bits = value.to(tl.int32, bitcast=True)
    ratio = tl.div_rn(value, scale).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    clamped = tl.minimum(ratio, 0x43E00000)  # 448
    normal = ((clamped + 0x7FFFF + ((clamped >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2^-6 codes are multiples of 2^-9, which is what is left in float32 above 2^14.
    shifted = clamped.to(tl.float32, bitcast=True) + 16384.0
    subnormal = shifted.to(tl.int32, bitcast=True) - 0x46800000
    code = tl.where(clamped < 0x3C800000, subnormal, normal)
    code = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7F, code)
    return code | ((bits >> 24) & 0x80)


@triton.jit(do_not_specialize=list(_TYPES))
def quantize_scatter_c8_kernel(
    latent,
    rope,
    slots,
    cache,
    n: tl.int32,
    rope_at: tl.int32,
    scales_at: tl.int32,
    slots_stride: tl.int64,
    latent_stride: tl.int64,
    rope_stride: tl.int64,
    count: tl.int64,
    block_rows: tl.int64,
    block_stride: tl.int64,
    row_stride: tl.int64,
    POW2: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    for i in range(tl.program_id(0), n, tl.num_programs(0)):
        token = tl.cast(i, tl.int64)
        slot = tl.load(slots + token * slots_stride)
        if (slot >= 0) & (slot < count):
            row = cache + row_offset(slot, block_rows, block_stride, row_stride)
            for tile in range(TILES):
                at = tile * TILE + tl.arange(0, TILE)
                value = tl.load(latent + token * latent_stride + at).to(tl.float32)
                magnitude = value.to(tl.int32, bitcast=True) & 0x7FFFFFFF
                scale = tile_scale(magnitude, POW2)
                tl.store(row + at, as_bytes(encode(value, scale)))
                # A row may start at any byte, so the scale goes byte by byte.
                byte = tl.arange(0, 4)
                parts = (scale.to(tl.int32, bitcast=True) >> (8 * byte)) & 0xFF
                tl.store(row + scales_at + tile * 4 + byte, as_bytes(parts))
            copy_lanes(rope + token * rope_stride, row + rope_at, TILE, TILE)


VARIANTS = tuple(
    Variant(
        f"quantize_scatter_c8-{rule}-{latent}-{ids}",
        quantize_scatter_c8_kernel,
        signature(_TYPES, latent=f"*{latent}", id=f"*{ids}"),
        {"POW2": int(rule == "pow2"), "TILE": TILE, "TILES": TILES},
        # Values, bits, ratios, both kinds of codes, and their masks.
        TILE * 4 * 54,
    )
    for rule in ("amax", "pow2")
    for latent in ("bf16", "fp16", "fp32")
    for ids in ("i32", "i64")
)
