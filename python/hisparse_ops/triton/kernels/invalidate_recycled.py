"""invalidate_recycled: owners[g][state, h] = -1 where the owner is one of the sorted slots.

Recycled rows come as whole host blocks, so most of the list is runs of consecutive rows. A run of RUN rows is looked
for by its two ends; rows that stand alone are looked for one by one. Both are compares of a tile of owners with a
scalar: a search for every owner would be a scalar load an element on Ascend.
"""

import triton
import triton.language as tl

from ._owners import FIELDS, TILE
from ._variant import STRIDED, Variant, signature

RUN = 32

_TYPES = {
    "table": "*i64",
    "state_rows": "*states",
    "slots": "*slots",
    "groups": "i32",
    "listed": "i32",
    "n": "i32",
    "tiles": "i32",
    "states_stride": "i64",
    "slots_stride": "i64",
}


@triton.jit
def steps_of_one(slots, slots_stride, first, RUN: tl.constexpr):
    """How many of the RUN - 1 steps between RUN slots from ``first`` on are 1. All of them exist."""
    at = (first + tl.arange(0, RUN)).to(tl.int64)
    inside = tl.arange(0, RUN) < RUN - 1
    here = tl.load(slots + at * slots_stride, mask=inside, other=0)
    following = tl.load(slots + (at + 1) * slots_stride, mask=inside, other=0)
    return tl.sum((following - here == 1).to(tl.int32), 0)


@triton.jit(do_not_specialize=list(_TYPES))
def invalidate_recycled_kernel(
    table,
    state_rows,
    slots,
    groups: tl.int32,
    listed: tl.int32,
    n: tl.int32,
    tiles: tl.int32,
    states_stride: tl.int64,
    slots_stride: tl.int64,
    FIELDS: tl.constexpr,
    RUN: tl.constexpr,
    TILE: tl.constexpr,
):
    for piece in range(
        tl.program_id(0).to(tl.int64), groups.to(tl.int64) * listed * tiles, tl.num_programs(0)
    ):
        row = piece // tiles
        start = tl.cast(piece - row * tiles, tl.int32) * TILE
        group = row // listed
        item = table + group * FIELDS
        state = tl.load(state_rows + (row - group * listed) * states_stride)
        hot_size = tl.load(item + 2).to(tl.int32)
        if (state >= 0) & (state < tl.load(item + 1)) & (start < hot_size):
            owners = tl.cast(tl.load(item), tl.pointer_type(tl.int32))
            owners += tl.cast(state, tl.int64) * tl.load(item + 3)
            slot = start + tl.arange(0, TILE)
            inside = slot < hot_size
            held = tl.load(owners + slot, mask=inside, other=-1)
            hit = slot < 0
            first = 0
            while first < n:
                taken = 1
                low = tl.load(slots + tl.cast(first, tl.int64) * slots_stride)
                if first + RUN <= n:
                    if steps_of_one(slots, slots_stride, first, RUN) == RUN - 1:
                        taken = RUN
                if (low >= 0) & (low <= 0x7FFFFFFF):
                    # How far an owner is from the run's start: its end may be past int32.
                    start_of_run = low.to(tl.int32)
                    distance = tl.maximum(held, start_of_run) - start_of_run
                    hit = hit | ((held >= start_of_run) & (distance < taken))
                else:
                    taken = 1  # a run may begin below 0 and reach rows that owners can be
                first += taken
            tl.store(owners + slot, tl.full((TILE,), -1, tl.int32), mask=hit & inside)


VARIANTS = tuple(
    Variant(
        f"invalidate_recycled-{ids}-{slots}",
        invalidate_recycled_kernel,
        signature(_TYPES, states=f"*{ids}", slots=f"*{slots}"),
        {"FIELDS": FIELDS, "RUN": RUN, "TILE": TILE},
        # Slots, owners, their distance, what is stored, and masks; the run's rows.
        2 * TILE * (4 + 4 + 4 + 4 + 4) + RUN * 2 * STRIDED,
    )
    for ids in ("i32", "i64")
    for slots in ("i32", "i64")
)
