"""invalidate_written: owners[g][state, h] = -1 where the owner is a row that the state's request writes."""

import triton
import triton.language as tl

from ._owners import FIELDS, TILE, narrow
from ._variant import Variant, signature

CHUNK = 32
"""Tokens that one piece of work looks for. A request's tokens follow each other, so a chunk is of few states."""

_TYPES = {
    "table": "*i64",
    "states": "*states",
    "request_ids": "*requests",
    "slots": "*slots",
    "groups": "i32",
    "requests": "i64",
    "n": "i32",
    "states_stride": "i64",
    "requests_stride": "i64",
    "slots_stride": "i64",
}


@triton.jit
def state_of(states, request_ids, token, requests, states_stride, requests_stride):
    """The state row of a token, or -1."""
    request = tl.load(request_ids + tl.cast(token, tl.int64) * requests_stride)
    state = tl.full((), -1, tl.int64)
    if (request >= 0) & (request < requests):
        state = tl.load(states + tl.cast(request, tl.int64) * states_stride).to(tl.int64)
    return state


@triton.jit
def forget_tokens(owners, hot_size, slots, slots_stride, first, last, TILE: tl.constexpr):
    """Every slot of a state row that owns what one of the tokens [first, last) writes."""
    for start in range(0, hot_size, TILE):
        slot = start + tl.arange(0, TILE)
        inside = slot < hot_size
        held = tl.load(owners + slot, mask=inside, other=-1)
        hit = slot < 0  # none yet
        for token in range(first, last):
            written = narrow(tl.load(slots + tl.cast(token, tl.int64) * slots_stride))
            hit = hit | (held == written)
        # Only what is forgotten is stored, so programs that look at one row do not undo each other.
        tl.store(owners + slot, tl.full((TILE,), -1, tl.int32), mask=hit & inside)


@triton.jit(do_not_specialize=list(_TYPES))
def invalidate_written_kernel(
    table,
    states,
    request_ids,
    slots,
    groups: tl.int32,
    requests: tl.int64,
    n: tl.int32,
    states_stride: tl.int64,
    requests_stride: tl.int64,
    slots_stride: tl.int64,
    FIELDS: tl.constexpr,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
):
    chunks = (n + CHUNK - 1) // CHUNK
    for piece in range(tl.program_id(0), groups * chunks, tl.num_programs(0)):
        item = table + tl.cast(piece // chunks, tl.int64) * FIELDS
        first = tl.cast(piece % chunks, tl.int32) * CHUNK
        end = tl.minimum(first + CHUNK, n)
        while first < end:
            state = state_of(states, request_ids, first, requests, states_stride, requests_stride)
            last = first + 1
            same = last < end
            while same:
                following = state_of(
                    states, request_ids, last, requests, states_stride, requests_stride
                )
                same = following == state
                if same:
                    last += 1
                    same = last < end
            if (state >= 0) & (state < tl.load(item + 1)):
                owners = tl.cast(tl.load(item), tl.pointer_type(tl.int32))
                owners += state * tl.load(item + 3)
                hot_size = tl.load(item + 2).to(tl.int32)
                forget_tokens(owners, hot_size, slots, slots_stride, first, last, TILE)
            first = last


VARIANTS = tuple(
    Variant(
        f"invalidate_written-{ids}-{slots}",
        invalidate_written_kernel,
        signature(_TYPES, states=f"*{ids}", requests=f"*{ids}", slots=f"*{slots}"),
        {"FIELDS": FIELDS, "CHUNK": CHUNK, "TILE": TILE},
        # Slots, owners, what is stored, and masks.
        2 * TILE * (4 + 4 + 4 + 4) + 256,
    )
    for ids in ("i32", "i64")
    for slots in ("i32", "i64")
)
