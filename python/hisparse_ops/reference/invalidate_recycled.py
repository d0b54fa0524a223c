from collections.abc import Sequence

from torch import Tensor


def invalidate_recycled(owners: Sequence[Tensor], state_rows: Tensor, sorted_slots: Tensor) -> None:
    recycled = {slot for slot in sorted_slots.tolist() if slot >= 0}
    for owner in owners:
        for state in state_rows.tolist():
            if 0 <= state < owner.shape[0]:
                for h, held in enumerate(owner[state].tolist()):
                    if held in recycled:
                        owner[state, h] = -1
