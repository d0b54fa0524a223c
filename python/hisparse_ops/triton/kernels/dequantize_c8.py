"""dequantize_c8: latent[i] = codes * scales and rope[i] of cache row row_ids[i]; zeros for a row outside."""

import triton
import triton.language as tl

from ._rows import copy_lanes, row_offset, zero_lanes
from ._variant import Variant, signature

TILE = 128
TILES = 4
FORMATS = ("fp32", "bf16", "fp16")

_TYPES = {
    "cache": "*i8",
    "row_ids": "*id",
    "latent": "*bits",
    "rope": "*i8",
    "n": "i32",
    "rope_at": "i32",
    "scales_at": "i32",
    "ids_stride": "i64",
    "latent_stride": "i64",
    "rope_stride": "i64",
    "count": "i64",
    "block_rows": "i64",
    "block_stride": "i64",
    "row_stride": "i64",
}


@triton.jit
def decode(code):
    """Value of E4M3FN codes, 0 .. 255; that of a NaN code is not one, the caller knows them."""
    exponent, mantissa = (code >> 3) & 15, code & 7
    normal = ((exponent + 120) << 23) | (mantissa << 20)
    subnormal = (mantissa.to(tl.float32) * 2.0**-9).to(tl.int32, bitcast=True)
    bits = tl.where(exponent == 0, subnormal, normal)
    # The sign as a bit: a negation may be 0 - x, which loses that of a zero.
    return tl.where((code & 0x80) != 0, bits | -0x80000000, bits).to(tl.float32, bitcast=True)


@triton.jit
def narrow(value, is_nan, FORMAT: tl.constexpr):
    """Bits of float32 values in the format (0 = fp32, 1 = bf16, 2 = fp16); every NaN is the quiet one without sign."""
    bits = value.to(tl.int32, bitcast=True)
    is_nan = is_nan | ((bits & 0x7FFFFFFF) > 0x7F800000)
    if FORMAT == 0:
        narrowed = tl.where(is_nan, 0x7FC00000, bits)
    elif FORMAT == 1:
        # To nearest, ties to even; infinities keep their bits. The sign is put aside: the sum could pass int32.
        magnitude = bits & 0x7FFFFFFF
        rounded = (magnitude + 0x7FFF + ((magnitude >> 16) & 1)) >> 16
        narrowed = tl.where(is_nan, 0x7FC0, rounded | ((bits >> 16) & -0x8000)).to(tl.int16)
    else:
        half = tl.where(is_nan, 0.0, value).to(tl.float16).to(tl.int16, bitcast=True)
        narrowed = tl.where(is_nan, 0x7E00, half).to(tl.int16)
    return narrowed


@triton.jit(do_not_specialize=list(_TYPES))
def dequantize_c8_kernel(
    cache,
    row_ids,
    latent,
    rope,
    n: tl.int32,
    rope_at: tl.int32,
    scales_at: tl.int32,
    ids_stride: tl.int64,
    latent_stride: tl.int64,
    rope_stride: tl.int64,
    count: tl.int64,
    block_rows: tl.int64,
    block_stride: tl.int64,
    row_stride: tl.int64,
    FORMAT: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    for i in range(tl.program_id(0), n, tl.num_programs(0)):
        at_row = tl.cast(i, tl.int64)
        row_id = tl.load(row_ids + at_row * ids_stride)
        to = latent + at_row * latent_stride
        to_rope = rope + at_row * rope_stride
        if (row_id >= 0) & (row_id < count):
            row = cache + row_offset(row_id, block_rows, block_stride, row_stride)
            for tile in range(TILES):
                at = tile * TILE + tl.arange(0, TILE)
                code = tl.load(row + at).to(tl.int32) & 0xFF
                # A row may start at any byte, so the scale comes byte by byte.
                byte = tl.arange(0, 4)
                parts = tl.load(row + scales_at + tile * 4 + byte).to(tl.int32) & 0xFF
                # The bytes do not overlap: their sum is their union, the last one with its sign.
                top = tl.where(byte == 3, parts - ((parts & 0x80) << 1), parts)
                scale = tl.sum(top << (8 * byte), 0).to(tl.float32, bitcast=True)
                value = decode(code) * scale
                tl.store(to + at, narrow(value, (code & 0x7F) == 0x7F, FORMAT))
            copy_lanes(row + rope_at, to_rope, TILE, TILE)
        else:
            zero_lanes(to, TILE * TILES, TILE)
            zero_lanes(to_rope, TILE, TILE)


VARIANTS = tuple(
    Variant(
        f"dequantize_c8-{name}-{ids}",
        dequantize_c8_kernel,
        signature(_TYPES, bits="*i32" if name == "fp32" else "*i16", id=f"*{ids}"),
        {"FORMAT": FORMATS.index(name), "TILE": TILE, "TILES": TILES},
        # Codes, their parts, values and results in 32 bits, in 16 and in 8, and masks.
        TILE * 4 * 28,
    )
    for name in FORMATS
    for ids in ("i32", "i64")
)
