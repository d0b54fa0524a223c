"""Value checks of the invalidate ops."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hisparse_ops.validation._values import (
    INT32_MAX,
    Values,
    check_owners,
    check_slots,
    named_rows,
    on_host,
    validates,
)


@validates("invalidate_written")
def _invalidate_written(
    owners: Sequence[Tensor], request_state_indices: Tensor, request_ids: Tensor, slots: Tensor
) -> None:
    """Only the requests of the call count: rows of other requests in the tables may be of any age."""
    check = Values("invalidate_written")
    requests = check.ids("request_ids", request_ids, len(request_state_indices), "a request")
    check_slots(check, "slots", slots, INT32_MAX + 1)
    states = on_host(request_state_indices)
    used = named_rows(requests, len(states))
    for group, owner in enumerate(owners):
        for request in used.tolist():
            what = f"-1 or a state row of owners[{group}], below {len(owner)}"
            row = states[request : request + 1]
            if not -1 <= int(row) < len(owner):
                check.fail("request_state_indices", (request,), f"be {what}", int(row))
        check_owners(check, f"owners[{group}]", owner, named_rows(states[used], len(owner)))


@validates("invalidate_recycled")
def _invalidate_recycled(
    owners: Sequence[Tensor], state_rows: Tensor, sorted_slots: Tensor
) -> None:
    """The list must ascend: device kernels search it, and what is out of order may not be found."""
    check = Values("invalidate_recycled")
    states = on_host(state_rows)
    for owner in owners:
        check.ids("state_rows", state_rows, len(owner), "a state row")
    slots = check.ids("sorted_slots", sorted_slots, INT32_MAX + 1, "a host row")
    falls = torch.zeros(len(slots), dtype=torch.bool)
    falls[1:] = slots[1:] < slots[:-1]
    check.reject("sorted_slots", slots, falls, "be at least the slot before it")
    for group, owner in enumerate(owners):
        check_owners(check, f"owners[{group}]", owner, named_rows(states, len(owner)))
