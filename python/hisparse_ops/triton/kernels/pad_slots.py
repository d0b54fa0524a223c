"""pad_slots: the first ``valid_count`` slots, then -1."""

import triton
import triton.language as tl

from ._variant import STRIDED, Variant, signature

BLOCK = 256

_TYPES = {
    "slots": "*slots",
    "valid_count": "*slots",
    "out": "*out",
    "slots_stride": "i64",
    "out_stride": "i64",
    "n": "i32",
}


@triton.jit(do_not_specialize=list(_TYPES))
def pad_slots_kernel(
    slots,
    valid_count,
    out,
    slots_stride: tl.int64,
    out_stride: tl.int64,
    n: tl.int32,
    NARROW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    count = tl.load(valid_count)
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        slot = tl.load(slots + at.to(tl.int64) * slots_stride, mask=at < n, other=-1)
        keep = at < count
        if NARROW:  # a slot that int32 cannot hold is none
            keep = keep & (slot == slot.to(tl.int32).to(tl.int64))
        padded = tl.where(keep, slot, -1).to(out.dtype.element_ty)
        tl.store(out + at.to(tl.int64) * out_stride, padded, mask=at < n)


VARIANTS = tuple(
    Variant(
        f"pad_slots-{slots}-{out}",
        pad_slots_kernel,
        signature(_TYPES, slots=f"*{slots}", out=f"*{out}"),
        {"NARROW": int(slots == "i64" and out == "i32"), "BLOCK": BLOCK},
        # Offsets, slots as they come, narrowed and chosen, and masks: tiles of strided elements.
        BLOCK * 9 * STRIDED,
    )
    for slots in ("i32", "i64")
    for out in ("i32", "i64")
)
