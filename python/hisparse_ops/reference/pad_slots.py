from torch import Tensor


def pad_slots(slots: Tensor, valid_count: Tensor, out: Tensor) -> None:
    for i, slot in enumerate(slots.tolist()):
        fits = out.element_size() == 8 or -(2**31) <= slot < 2**31
        out[i] = slot if i < int(valid_count[0]) and fits else -1
