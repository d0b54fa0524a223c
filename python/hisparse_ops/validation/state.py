"""Is a request's state true? Tables against each other, and every hot row against its host row, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hisparse_ops.checks import num_rows
from hisparse_ops.validation._values import Values, check_lru, check_owners, named_rows, on_host


@dataclass(frozen=True)
class StateReport:
    """What :func:`check_state` proved."""

    requests: int
    owned_slots: int
    resident_rows: int
    bytes_compared: int


@dataclass(frozen=True)
class _Tables:
    """The tables on the host."""

    states: Tensor
    hot_blocks: Tensor
    owner: Tensor
    source: Tensor | None
    resident: Tensor | None
    block_size: int
    source_size: int


def check_state(
    hot_owner: Tensor,
    lru_slots: Tensor,
    hot_block_table: Tensor,
    request_state_indices: Tensor,
    host_caches: Sequence[Tensor],
    hot_caches: Sequence[Tensor],
    *,
    source_block_table: Tensor | None = None,
    source_block_size: int | None = None,
    resident_block_table: Tensor | None = None,
    lengths: Tensor | None = None,
    requests: Sequence[int] | None = None,
) -> StateReport:
    """Prove the invariants of requests' states, between steps.

    Of every request: its state row is its own; owners are -1 or rows of the host cache, each owned once and, where
    ``source_block_table`` is given, rows of the request; the LRU is a permutation; every slot stands in a device
    block of its own; and in every layer every owned slot holds the bytes of its host row. Where ``lengths`` is given,
    the resident pages hold the bytes of the host too, below the request's length.

    Parameters
    ----------
    hot_owner, lru_slots, hot_block_table, request_state_indices : Tensor
        As for :func:`hisparse_ops.resolve`.
    host_caches, hot_caches : sequence of Tensor
        One pair for each layer of the index group, as for :func:`hisparse_ops.gather_compact`; hot caches are
        ``[blocks, block_size, width]``. Call it after the refill of every layer.
    source_block_table, source_block_size, resident_block_table : optional
        As for :func:`hisparse_ops.resolve`; resident pages have the block size of the hot caches.
    lengths : Tensor, optional
        ``[num_requests]``: tokens of each request; needs both block tables and pages of one size.
    requests : sequence of int, optional
        Requests to check; all that have a state row by default.

    Raises
    ------
    ValidationError
        The first invariant that does not hold, as ``check_state: <argument>[row, column] must <rule>, got <value>``.
    """
    check = Values("check_state")
    block_size = hot_caches[0].shape[1]
    tables = _Tables(
        on_host(request_state_indices),
        on_host(hot_block_table),
        on_host(hot_owner),
        None if source_block_table is None else on_host(source_block_table),
        None if resident_block_table is None else on_host(resident_block_table),
        block_size,
        source_block_size or block_size,
    )
    chosen = _requests(check, tables, requests)
    used = named_rows(tables.states[chosen], len(hot_owner))
    host_rows = min(num_rows(cache) for cache in host_caches)
    num_blocks = min(len(cache) for cache in hot_caches)
    check_owners(check, "hot_owner", hot_owner, used, host_rows)
    check_lru(check, "lru_slots", lru_slots, used)
    _check_hot_blocks(check, tables, chosen, num_blocks)
    slots = resident_rows = compared = 0
    for request in chosen.tolist():
        _check_own_rows(check, tables, request)
        held, hot = _owned(tables, request)
        slots += len(held)
        names = ("hot_owner", int(tables.states[request]))
        rule = "name the host row whose bytes its slot holds"
        rows = tables.owner[names[1]][held]
        for layer in zip(host_caches, hot_caches, strict=True):
            compared += _compare(check, names, held, rows, hot, layer, rule)
        if lengths is not None:
            count, more = _check_resident(
                check, tables, request, int(lengths[request]), host_caches, hot_caches
            )
            resident_rows, compared = resident_rows + count, compared + more
    return StateReport(len(chosen), slots, resident_rows, compared)


def _requests(check: Values, tables: _Tables, requests: Sequence[int] | None) -> Tensor:
    count = min(len(tables.states), len(tables.hot_blocks))
    if requests is None:
        chosen = (tables.states[:count] >= 0).nonzero()[:, 0]
    else:
        chosen = torch.tensor(list(requests), dtype=torch.int64)
        check.within("requests", chosen, 0, count, f"a request below {count}")
    mask = torch.zeros(len(tables.states), dtype=torch.bool)
    mask[chosen] = True
    num_states = len(tables.owner)
    what = f"a state row below {num_states}"
    check.within("request_state_indices", tables.states, 0, num_states, what, mask)
    check.unique("request_state_indices", tables.states, mask, "be a state row of its own")
    return chosen


def _check_hot_blocks(check: Values, tables: _Tables, chosen: Tensor, num_blocks: int) -> None:
    needed = -(-tables.owner.shape[1] // tables.block_size)
    used = torch.zeros_like(tables.hot_blocks, dtype=torch.bool)
    used[chosen, :needed] = True
    what = f"a device block, 1 to {num_blocks - 1}"
    check.within("hot_block_table", tables.hot_blocks, 1, num_blocks, what, used)
    rule = "be the block of one hot buffer column only"
    check.unique("hot_block_table", tables.hot_blocks, used, rule)


def _check_own_rows(check: Values, tables: _Tables, request: int) -> None:
    """An owner that is no row of its request is left from another one, or its host block was given away."""
    if tables.source is None:
        return
    state = int(tables.states[request])
    row = tables.owner[state]
    blocks = tables.source[request]
    own = torch.isin(row // tables.source_size, blocks[blocks > 0])
    check.reject(
        "hot_owner", row, (row >= 0) & ~own, f"be a host row of request {request}", (state,)
    )


def _owned(tables: _Tables, request: int) -> tuple[Tensor, Tensor]:
    """Slots that own a row, and their physical rows."""
    held = (tables.owner[int(tables.states[request])] >= 0).nonzero()[:, 0]
    blocks = tables.hot_blocks[request][held // tables.block_size]
    return held, blocks * tables.block_size + held % tables.block_size


def _bytes(cache: Tensor, rows: Tensor) -> Tensor:
    """``[n, row bytes]`` on the host."""
    rows = rows.to(cache.device)
    paged = (rows // cache.shape[1], rows % cache.shape[1]) if cache.dim() == 3 else rows
    return cache[paged].contiguous().view(torch.uint8).cpu()


def _compare(
    check: Values,
    names: tuple[str, int],
    columns: Tensor,
    host_rows: Tensor,
    device_rows: Tensor,
    layer: tuple[Tensor, Tensor],
    rule: str,
) -> int:
    """Bytes compared; fails at the first row that differs, which ``names`` and its column name."""
    host, hot = _bytes(layer[0], host_rows), _bytes(layer[1], device_rows)
    differs = (host != hot).any(1).nonzero()[:, 0]
    if len(differs):
        at = int(differs[0])
        byte = int((host[at] != hot[at]).nonzero()[0])
        row = f"{int(host_rows[at])}, whose byte {byte} is {int(host[at, byte])}, not {int(hot[at, byte])}"
        check.fail(names[0], (names[1], int(columns[at])), rule, row)
    return host.numel()


def _check_resident(
    check: Values,
    tables: _Tables,
    request: int,
    length: int,
    host_caches: Sequence[Tensor],
    hot_caches: Sequence[Tensor],
) -> tuple[int, int]:
    if tables.source is None or tables.resident is None or tables.source_size != tables.block_size:
        check.fail("lengths", (), "come with both block tables of one block size", "other tables")
    state = int(tables.states[request])
    size = tables.block_size
    positions = torch.arange(length)
    page = positions // size
    width = min(tables.source.shape[1], tables.resident.shape[1])
    positions = positions[page < width]
    page = page[page < width]
    source, resident = tables.source[request][page], tables.resident[state][page]
    both = (source > 0) & (resident > 0)
    positions, page = positions[both], page[both]
    host_rows = source[both] * size + positions % size
    device_rows = resident[both] * size + positions % size
    rule = "name the page whose bytes the host holds"
    compared = 0
    for layer in zip(host_caches, hot_caches, strict=True):
        names = ("resident_block_table", state)
        compared += _compare(check, names, page, host_rows, device_rows, layer, rule)
    return len(positions), compared
