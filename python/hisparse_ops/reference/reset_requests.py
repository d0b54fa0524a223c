from torch import Tensor


def reset_requests(hot_owner: Tensor, lru_slots: Tensor, state_rows: Tensor) -> None:
    for state in state_rows.tolist():
        if 0 <= state < len(hot_owner):
            for slot in range(hot_owner.shape[1]):
                hot_owner[state, slot] = -1
                lru_slots[state, slot] = slot
