"""Owner tables of several index groups, and tiles of them."""

import triton
import triton.language as tl

FIELDS = 4
"""Numbers of a table's item: address, states, hot size, row stride."""

TILE = 1024
"""Owners that are looked at together."""


@triton.jit
def narrow(slot):
    """A host row as int32; one that no owner can be becomes -1, and to forget a slot that holds nothing is nothing."""
    fits = (slot >= 0) & (slot <= 0x7FFFFFFF)
    return tl.where(fits, slot, -1).to(tl.int32)
