"""Invalidate ops: forget hot copies of host rows whose bytes are no longer what they were."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hisparse_ops.checks import Checker
from hisparse_ops.registry import define_op

_invalidate_written = define_op(
    "invalidate_written(Tensor(a!)[] owners, Tensor request_state_indices, Tensor request_ids,"
    " Tensor slots) -> ()",
    family="invalidate",
)

_invalidate_recycled = define_op(
    "invalidate_recycled(Tensor(a!)[] owners, Tensor state_rows, Tensor sorted_slots) -> ()",
    family="invalidate",
)


def _check_owners(check: Checker, owners: Sequence[Tensor]) -> None:
    for group, owner in enumerate(owners):
        check.table(f"owners[{group}]", owner, torch.int32, written=True)


@_invalidate_written.fake
def _check_invalidate_written(
    owners: Sequence[Tensor], request_state_indices: Tensor, request_ids: Tensor, slots: Tensor
) -> None:
    check = Checker("invalidate_written", slots.device)
    _check_owners(check, owners)
    check.ids("request_state_indices", request_state_indices, 1)
    check.ids("request_ids", request_ids, 1)
    check.ids("slots", slots, 1)
    check.size("slots", slots, 0, "tokens", request_ids.shape[0])


@_invalidate_written.public
def invalidate_written(
    owners: Sequence[Tensor], request_state_indices: Tensor, request_ids: Tensor, slots: Tensor
) -> None:
    """Forget every hot copy of the host rows that a step writes.

    ``owners[g][s, h] = -1`` where ``owners[g][s, h] == slots[i]``, for every group ``g``, hot slot ``h`` and token
    ``i``, with ``s = request_state_indices[request_ids[i]]``.

    A host row that is written again (a rejected draft's position, a chunk that is computed once more) must miss at
    its next use: its hot copy holds the old bytes.

    Parameters
    ----------
    owners : sequence of Tensor
        One ``[num_states, hot_size]`` int32 table for each index group; sizes may differ, rows may be any stride
        apart. Host row that each hot slot holds, -1 none. Written. May be empty.
    request_state_indices : Tensor
        ``[num_requests]``, int32 or int64: state row of each request; outside a table = no state there.
    request_ids : Tensor
        ``[n]``, int32 or int64: request of each token; outside ``[0, num_requests)`` = padding, ignored.
    slots : Tensor
        ``[n]``, int32 or int64: host row that each token is written to; negative = padding, ignored. Compared in 64
        bits: a slot beyond int32 is owned nowhere.

    Mutates: ``owners``, only elements that become -1; all copies of a row, in its request's state row only.
    Graph-safe: yes. Deterministic: bitwise. Cost: reads each state row with a written slot once a group.

    Raises
    ------
    ValueError
        A dtype, dimension, length or stride other than above; a table that overlaps another argument. Nothing is
        written then.

    Source: HiSparse in vLLM (``hisparse_invalidate_written_slots``), for all index groups at once.
    """
    _invalidate_written.call(owners, request_state_indices, request_ids, slots)


@_invalidate_recycled.fake
def _check_invalidate_recycled(
    owners: Sequence[Tensor], state_rows: Tensor, sorted_slots: Tensor
) -> None:
    check = Checker("invalidate_recycled", sorted_slots.device)
    _check_owners(check, owners)
    check.ids("state_rows", state_rows, 1)
    check.ids("sorted_slots", sorted_slots, 1)


@_invalidate_recycled.public
def invalidate_recycled(owners: Sequence[Tensor], state_rows: Tensor, sorted_slots: Tensor) -> None:
    """Forget every hot copy of host rows that are given to another request.

    ``owners[g][s, h] = -1`` where ``owners[g][s, h]`` is one of ``sorted_slots``, for every group ``g``, hot slot
    ``h`` and state row ``s`` of ``state_rows``.

    Parameters
    ----------
    owners : sequence of Tensor
        One ``[num_states, hot_size]`` int32 table for each index group; sizes may differ, rows may be any stride
        apart. Host row that each hot slot holds, -1 none. Written. May be empty.
    state_rows : Tensor
        ``[num_rows]``, int32 or int64: state rows to search; outside a table = ignored, repeats allowed.
    sorted_slots : Tensor
        ``[n]``, int32 or int64, ascending: recycled host rows; -1 and repeats allowed, may be empty. Compared in 64
        bits. Ascending order lets device kernels search the list; the CPU op finds the same elements in any order,
        and on no backend does a list out of order cause anything but -1 to be written.

    Mutates: ``owners``, only elements that become -1. Graph-safe: yes. Deterministic: bitwise.
    Cost: reads each listed state row once a group.

    Raises
    ------
    ValueError
        A dtype, dimension or stride other than above; a table that overlaps another argument. Nothing is written
        then.

    Source: HiSparse in vLLM (``invalidate_sorted_slots``), for all index groups at once.
    """
    _invalidate_recycled.call(owners, state_rows, sorted_slots)
