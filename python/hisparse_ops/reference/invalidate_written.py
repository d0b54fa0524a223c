from collections.abc import Sequence

from torch import Tensor


def invalidate_written(
    owners: Sequence[Tensor], request_state_indices: Tensor, request_ids: Tensor, slots: Tensor
) -> None:
    state_rows = request_state_indices.tolist()
    for request, slot in zip(request_ids.tolist(), slots.tolist(), strict=True):
        if not 0 <= request < len(state_rows) or slot < 0:
            continue
        state = state_rows[request]
        for owner in owners:
            if 0 <= state < owner.shape[0]:
                for h, held in enumerate(owner[state].tolist()):
                    if held == slot:
                        owner[state, h] = -1
