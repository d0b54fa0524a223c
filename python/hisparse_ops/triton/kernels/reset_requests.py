"""reset_requests: owner -1 and LRU 0 .. hot_size - 1 in the listed state rows."""

import triton
import triton.language as tl

from ._variant import Variant, signature

BLOCK = 1024

_TYPES = {
    "hot_owner": "*i32",
    "lru_slots": "*i16",
    "state_rows": "*id",
    "n": "i32",
    "states": "i64",
    "hot_size": "i32",
    "ids_stride": "i64",
    "owner_stride": "i64",
    "lru_stride": "i64",
}


@triton.jit(do_not_specialize=list(_TYPES))
def reset_requests_kernel(
    hot_owner,
    lru_slots,
    state_rows,
    n: tl.int32,
    states: tl.int64,
    hot_size: tl.int32,
    ids_stride: tl.int64,
    owner_stride: tl.int64,
    lru_stride: tl.int64,
    BLOCK: tl.constexpr,
):
    for i in range(tl.program_id(0), n, tl.num_programs(0)):
        state = tl.load(state_rows + tl.cast(i, tl.int64) * ids_stride)
        if (state >= 0) & (state < states):
            owner = hot_owner + tl.cast(state, tl.int64) * owner_stride
            lru = lru_slots + tl.cast(state, tl.int64) * lru_stride
            for start in range(0, hot_size, BLOCK):
                slot = start + tl.arange(0, BLOCK)
                inside = slot < hot_size
                tl.store(owner + slot, tl.full((BLOCK,), -1, tl.int32), mask=inside)
                tl.store(lru + slot, slot.to(tl.int16), mask=inside)


VARIANTS = tuple(
    Variant(
        f"reset_requests-{ids}",
        reset_requests_kernel,
        signature(_TYPES, id=f"*{ids}"),
        {"BLOCK": BLOCK},
        2 * BLOCK * (4 + 4 + 2),
    )
    for ids in ("i32", "i64")
)
