"""Rows of a slab, as lanes: addresses and copies."""

# A kernel's helpers take and return scalars or pointers; Triton types them.
import triton
import triton.language as tl


@triton.jit
def row_offset(row, block_rows, block_stride, row_stride):
    """Lanes from the slab's start to a row. ``row`` may be int32; the products are 64 bit."""
    block = row // block_rows
    in_block = row - block * block_rows
    return tl.cast(block, tl.int64) * block_stride + tl.cast(in_block, tl.int64) * row_stride


@triton.jit
def copy_lanes(source, target, lanes, BLOCK: tl.constexpr):
    """``lanes`` lanes from one address to the other."""
    for start in range(0, lanes, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < lanes
        tl.store(target + at, tl.load(source + at, mask=inside, other=0), mask=inside)


@triton.jit
def zero_lanes(target, lanes, BLOCK: tl.constexpr):
    """``lanes`` lanes of zeros."""
    for start in range(0, lanes, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(target + at, tl.zeros((BLOCK,), target.dtype.element_ty), mask=at < lanes)
