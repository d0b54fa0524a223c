"""Pairs of slabs, a source and a destination a layer, that share what is to be copied.

Work is dealt out by destination: a layer's destination rows belong to ``parts`` owners, and each piece of work, one
owner of one layer, goes through the whole list in order and copies what it owns. So of two entries with one
destination the later one wins, as on the CPU, without any order among the programs.
"""

import triton
import triton.language as tl

from ._rows import copy_lanes, row_offset

FIELDS = 9
"""Numbers of a table's item: both addresses, lanes, then the rows and strides of the source and of the destination."""


@triton.jit
def copy_pair_row(item, lane, row, to, BLOCK: tl.constexpr):
    """Row ``to`` of an item's destination from row ``row`` of its source; both exist."""
    source = tl.cast(tl.load(item), lane.dtype)
    target = tl.cast(tl.load(item + 1), lane.dtype)
    lanes = tl.load(item + 2).to(tl.int32)
    copy_lanes(
        source + row_offset(row, tl.load(item + 3), tl.load(item + 4), tl.load(item + 5)),
        target + row_offset(to, tl.load(item + 6), tl.load(item + 7), tl.load(item + 8)),
        lanes,
        BLOCK,
    )
