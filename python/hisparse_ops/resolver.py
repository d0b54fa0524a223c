"""Resolver ops: which KV row answers each top-k entry, and the state that decides it."""

from __future__ import annotations

import torch
from torch import Tensor

from hisparse_ops.checks import Checker, fail
from hisparse_ops.registry import define_op

MAX_HOT_SIZE = 32768
"""LRU entries are int16, so a hot buffer has at most this many slots."""

LAYOUTS = ("column", "prefix")
_INT32_MAX = 2**31 - 1

_resolve = define_op(
    "resolve(Tensor topk_indices, Tensor request_ids, Tensor request_state_indices,"
    " Tensor? source_block_table, Tensor hot_block_table, Tensor(a!) hot_owner, Tensor(b!) lru_slots,"
    " Tensor(c!) attention_indices, Tensor(d!) valid_counts, Tensor(e!) refill_host_rows,"
    " Tensor(f!) refill_hot_rows, Tensor(g!) refill_counts, *, SymInt host_rows, SymInt num_blocks,"
    " SymInt block_size, SymInt? source_block_size=None, SymInt? attention_block_stride=None,"
    ' str layout="column", SymInt? max_union_rows=None, Tensor? resident_block_table=None,'
    " SymInt? resident_block_size=None, Tensor? stable_lengths=None, Tensor(h!)? physical_rows=None,"
    " Tensor(i!)? resolved_host_rows=None, Tensor(j!)? miss_mask=None,"
    " Tensor(k!)? resident_counts=None, Tensor(l!)? stats=None) -> ()",
    family="resolver",
)


@_resolve.fake
def _check_resolve(
    topk_indices: Tensor,
    request_ids: Tensor,
    request_state_indices: Tensor,
    source_block_table: Tensor | None,
    hot_block_table: Tensor,
    hot_owner: Tensor,
    lru_slots: Tensor,
    attention_indices: Tensor,
    valid_counts: Tensor,
    refill_host_rows: Tensor,
    refill_hot_rows: Tensor,
    refill_counts: Tensor,
    *,
    host_rows: int,
    num_blocks: int,
    block_size: int,
    source_block_size: int | None = None,
    attention_block_stride: int | None = None,
    layout: str = "column",
    max_union_rows: int | None = None,
    resident_block_table: Tensor | None = None,
    resident_block_size: int | None = None,
    stable_lengths: Tensor | None = None,
    physical_rows: Tensor | None = None,
    resolved_host_rows: Tensor | None = None,
    miss_mask: Tensor | None = None,
    resident_counts: Tensor | None = None,
    stats: Tensor | None = None,
) -> None:
    check = Checker("resolve", topk_indices.device)
    check.ids("topk_indices", topk_indices, 2)
    rows, top_k = topk_indices.shape
    check.ids("request_ids", request_ids, 1)
    check.size("request_ids", request_ids, 0, "rows", rows)
    check.ids("request_state_indices", request_state_indices, 1)
    check.table("hot_block_table", hot_block_table, torch.int32)
    check.table("hot_owner", hot_owner, torch.int32, written=True)
    states, hot_size = hot_owner.shape
    check.table("lru_slots", lru_slots, torch.int16, written=True)
    check.size("lru_slots", lru_slots, 0, "states", states)
    check.size("lru_slots", lru_slots, 1, "hot_size", hot_size)
    for name, out in (
        ("attention_indices", attention_indices),
        ("refill_host_rows", refill_host_rows),
        ("refill_hot_rows", refill_hot_rows),
        ("physical_rows", physical_rows),
        ("resolved_host_rows", resolved_host_rows),
        ("miss_mask", miss_mask),
    ):
        if out is not None:
            check.table(name, out, torch.int32, written=True)
            check.size(name, out, 0, "rows", rows)
            check.size(name, out, 1, "top_k", top_k)
    for name, counts in (
        ("valid_counts", valid_counts),
        ("refill_counts", refill_counts),
        ("resident_counts", resident_counts),
    ):
        if counts is not None:
            check.vector(name, counts, torch.int32, "rows", rows)
    if stats is not None:
        check.vector("stats", stats, torch.int64, "length", 2)
    check.choice("layout", layout, LAYOUTS)
    _check_source(check, source_block_table, resident_block_table, stable_lengths)
    _check_sizes(
        check,
        top_k,
        hot_owner,
        hot_block_table,
        host_rows,
        num_blocks,
        block_size,
        source_block_size,
        attention_block_stride,
        max_union_rows,
        resident_block_size,
    )


def _check_source(
    check: Checker,
    source_block_table: Tensor | None,
    resident_block_table: Tensor | None,
    stable_lengths: Tensor | None,
) -> None:
    if source_block_table is not None:
        check.table("source_block_table", source_block_table, torch.int32)
    for name, t in (
        ("resident_block_table", resident_block_table),
        ("stable_lengths", stable_lengths),
    ):
        # Both are about positions, and without a source table the entries are host rows already.
        if t is not None and source_block_table is None:
            fail(check.op, name, "be None without source_block_table", "a tensor")
    if resident_block_table is not None:
        check.table("resident_block_table", resident_block_table, torch.int32)
    if stable_lengths is not None:
        check.ids("stable_lengths", stable_lengths, 1)


def _check_sizes(
    check: Checker,
    top_k: int,
    hot_owner: Tensor,
    hot_block_table: Tensor,
    host_rows: int,
    num_blocks: int,
    block_size: int,
    source_block_size: int | None,
    attention_block_stride: int | None,
    max_union_rows: int | None,
    resident_block_size: int | None,
) -> None:
    hot_size = hot_owner.shape[1]
    check.range("host_rows", host_rows, 0, _INT32_MAX)
    check.range("block_size", block_size, 1, _INT32_MAX)
    check.range("num_blocks", num_blocks, 0, _INT32_MAX // block_size)
    if source_block_size is not None:
        check.range("source_block_size", source_block_size, 1, _INT32_MAX)
    if resident_block_size is not None:
        check.range("resident_block_size", resident_block_size, 1, _INT32_MAX)
    if attention_block_stride is not None:
        # The largest attention index, that of the slab's last row, must fit int32.
        room = _INT32_MAX - (block_size - 1)
        high = room // (num_blocks - 1) if num_blocks > 1 else _INT32_MAX
        check.range("attention_block_stride", attention_block_stride, block_size, high)
    if hot_size > MAX_HOT_SIZE:
        fail(check.op, "hot_owner", f"have at most {MAX_HOT_SIZE} slots", str(hot_size))
    if hot_size < top_k:
        fail(check.op, "hot_owner", f"have at least top_k = {top_k} slots", str(hot_size))
    if max_union_rows is not None:
        check.range("max_union_rows", max_union_rows, top_k, hot_size)
    needed = (hot_size + block_size - 1) // block_size
    if hot_block_table.shape[1] < needed:
        rule = f"have at least {needed} columns for hot_size = {hot_size}"
        fail(check.op, "hot_block_table", rule, str(hot_block_table.shape[1]))


@_resolve.public
def resolve(
    topk_indices: Tensor,
    request_ids: Tensor,
    request_state_indices: Tensor,
    source_block_table: Tensor | None,
    hot_block_table: Tensor,
    hot_owner: Tensor,
    lru_slots: Tensor,
    attention_indices: Tensor,
    valid_counts: Tensor,
    refill_host_rows: Tensor,
    refill_hot_rows: Tensor,
    refill_counts: Tensor,
    *,
    host_rows: int,
    num_blocks: int,
    block_size: int,
    source_block_size: int | None = None,
    attention_block_stride: int | None = None,
    layout: str = "column",
    max_union_rows: int | None = None,
    resident_block_table: Tensor | None = None,
    resident_block_size: int | None = None,
    stable_lengths: Tensor | None = None,
    physical_rows: Tensor | None = None,
    resolved_host_rows: Tensor | None = None,
    miss_mask: Tensor | None = None,
    resident_counts: Tensor | None = None,
    stats: Tensor | None = None,
) -> None:
    """Turn each request's top-k into attention indices and a refill plan, updating owner and LRU.

    Consecutive rows with one request id are a *run* (the query rows of one speculative verification) and one
    transaction: translate positions to host rows, answer what is resident, give every other distinct host row
    one slot (a hit keeps its slot, a miss takes the oldest slot that the run does not need), rewrite the LRU as
    *other slots, filled slots, hit slots*, and plan one refill per miss.

    Parameters
    ----------
    topk_indices : Tensor
        ``[rows, top_k]``, int32 or int64: logical indices (token positions) of each query row, -1 unused; any
        strides. Host rows if ``source_block_table`` is None.
    request_ids : Tensor
        ``[rows]``, int32 or int64: request of each row; outside the tables = padding row.
    request_state_indices : Tensor
        ``[num_requests]``, int32 or int64: state row of each request; outside the state tables = padding.
    source_block_table : Tensor, optional
        ``[num_requests, source_blocks]``, int32: host block of each page of a request; block 0 and below = null.
    hot_block_table : Tensor
        ``[num_requests, hot_blocks]``, int32: device block of each ``block_size`` slots of the hot buffer.
    hot_owner : Tensor
        ``[num_states, hot_size]``, int32: host row each slot holds, -1 none. Written.
    lru_slots : Tensor
        ``[num_states, hot_size]``, int16: all slots, oldest first. Written.
    attention_indices : Tensor
        ``[rows, top_k]``, int32. Written: ``(p // block_size) * attention_block_stride + p % block_size`` of the
        physical row ``p`` that answers the entry, -1 for none.
    valid_counts : Tensor
        ``[rows]``, int32. Written: entries of the row that are not -1.
    refill_host_rows, refill_hot_rows : Tensor
        ``[rows, top_k]``, int32. Written: miss ``m`` of a run, in order of first reference (row, then column),
        stands at flat entry ``first_row * top_k + m``. Entries past their count are left as they are.
    refill_counts : Tensor
        ``[rows]``, int32. Written: plan entries in the row's segment,
        ``clamp(misses - (row - first_row) * top_k, 0, top_k)``.
    host_rows : int
        Rows of the host cache; translated rows at or past it are -1.
    num_blocks : int
        Blocks of the device slab; a resident or hot block at or past it is treated as null.
    block_size : int
        Rows of a device page.
    source_block_size, resident_block_size : int, optional
        Rows of a host page and of a resident page; ``block_size`` by default.
    attention_block_stride : int, optional
        Rows between the starts of two pages as attention addresses them; ``block_size`` by default.
    layout : str
        ``"column"``: entry i answers column i. ``"prefix"``: valid entries first, in column order, then -1. It
        holds for every ``[rows, top_k]`` output but the plan.
    max_union_rows : int, optional
        Most distinct host rows a run may need, ``top_k`` to ``hot_size``; ``hot_size`` by default.
    resident_block_table : Tensor, optional
        ``[num_states, resident_blocks]``, int32: device block that still holds the whole page; 0 and below = none.
    stable_lengths : Tensor, optional
        ``[num_requests]``, int32 or int64: positions at or past it may have been rewritten. Hot copies of them are
        dropped before matching, by every run that has a valid entry.
    physical_rows, resolved_host_rows, miss_mask : Tensor, optional
        ``[rows, top_k]``, int32. Written: physical row (or -1); translated host row (or -1); 1 at the first
        reference of a loaded row, else 0.
    resident_counts : Tensor, optional
        ``[rows]``, int32. Written: entries that a resident page answered.
    stats : Tensor, optional
        ``[2]``, int64. Added to: references answered by the hot buffer without a load of their own, and rows loaded.

    Mutates: every output; ``hot_owner`` and ``lru_slots`` only of runs with an entry that is not resident, but for
    the hot copies that ``stable_lengths`` drops.
    Graph-safe: yes. Deterministic: bitwise. Cost: O(rows * top_k) and one pass over owner and LRU a run.

    Raises
    ------
    ValueError
        A dtype, shape or stride other than above; an output that overlaps another argument; on the CPU also a run
        that needs more distinct rows than ``max_union_rows``. Nothing is written then.

    Notes
    -----
    Corrupted state degrades and never writes wild: an LRU entry outside ``[0, hot_size)``, one that comes up twice as
    a victim, or a slot without a device block cannot be filled. Its entries become -1, its plan entry's hot row is
    -1, nothing is owned, and the row misses again later.

    Source: HiSparse in vLLM (``hisparse_resolve_residency``), with the union over MTP rows.
    """
    _resolve.call(
        topk_indices,
        request_ids,
        request_state_indices,
        source_block_table,
        hot_block_table,
        hot_owner,
        lru_slots,
        attention_indices,
        valid_counts,
        refill_host_rows,
        refill_hot_rows,
        refill_counts,
        host_rows=host_rows,
        num_blocks=num_blocks,
        block_size=block_size,
        source_block_size=source_block_size,
        attention_block_stride=attention_block_stride,
        layout=layout,
        max_union_rows=max_union_rows,
        resident_block_table=resident_block_table,
        resident_block_size=resident_block_size,
        stable_lengths=stable_lengths,
        physical_rows=physical_rows,
        resolved_host_rows=resolved_host_rows,
        miss_mask=miss_mask,
        resident_counts=resident_counts,
        stats=stats,
    )


_reset_requests = define_op(
    "reset_requests(Tensor(a!) hot_owner, Tensor(b!) lru_slots, Tensor state_rows) -> ()",
    family="resolver",
)


@_reset_requests.fake
def _check_reset_requests(hot_owner: Tensor, lru_slots: Tensor, state_rows: Tensor) -> None:
    check = Checker("reset_requests", hot_owner.device)
    check.table("hot_owner", hot_owner, torch.int32, written=True)
    check.table("lru_slots", lru_slots, torch.int16, written=True)
    check.size("lru_slots", lru_slots, 0, "states", hot_owner.shape[0])
    check.size("lru_slots", lru_slots, 1, "hot_size", hot_owner.shape[1])
    if hot_owner.shape[1] > MAX_HOT_SIZE:
        rule = f"have at most {MAX_HOT_SIZE} slots"
        fail(check.op, "hot_owner", rule, str(hot_owner.shape[1]))
    check.ids("state_rows", state_rows, 1)


@_reset_requests.public
def reset_requests(hot_owner: Tensor, lru_slots: Tensor, state_rows: Tensor) -> None:
    """Empty the hot buffers of the listed state rows: owner -1, LRU ``0 .. hot_size - 1``.

    A state row that goes to another request must be reset first, or the new request hits the old one's bytes.

    Parameters
    ----------
    hot_owner : Tensor
        ``[num_states, hot_size]``, int32. Written in the listed rows.
    lru_slots : Tensor
        ``[num_states, hot_size]``, int16. Written in the listed rows.
    state_rows : Tensor
        ``[n]``, int32 or int64: rows to reset; those outside ``[0, num_states)`` are ignored.

    Mutates: ``hot_owner``, ``lru_slots``. Graph-safe: yes. Deterministic: bitwise.
    Cost: writes n * hot_size * 6 bytes.

    Raises
    ------
    ValueError
        A dtype, shape or stride other than above, arguments that overlap, or more than 32768 slots.

    Source: request-slot reuse in SGLang (#23239) and vLLM's state rows.
    """
    _reset_requests.call(hot_owner, lru_slots, state_rows)


_residency_stats = define_op(
    "residency_stats(Tensor valid_counts, Tensor refill_counts, Tensor(a!) stats, *,"
    " Tensor? resident_counts=None) -> ()",
    family="resolver",
)


@_residency_stats.fake
def _check_residency_stats(
    valid_counts: Tensor,
    refill_counts: Tensor,
    stats: Tensor,
    *,
    resident_counts: Tensor | None = None,
) -> None:
    check = Checker("residency_stats", valid_counts.device)
    check.ids("valid_counts", valid_counts, 1)
    for name, counts in (("refill_counts", refill_counts), ("resident_counts", resident_counts)):
        if counts is not None:
            check.ids(name, counts, 1)
            check.size(name, counts, 0, "rows", valid_counts.shape[0])
    check.vector("stats", stats, torch.int64, "length", 2)


@_residency_stats.public
def residency_stats(
    valid_counts: Tensor,
    refill_counts: Tensor,
    stats: Tensor,
    *,
    resident_counts: Tensor | None = None,
) -> None:
    """Add hot-buffer hits and misses to ``stats``, from the counts that ``resolve`` wrote.

    ``stats[0] += sum(valid_counts) - sum(resident_counts) - sum(refill_counts)``;
    ``stats[1] += sum(refill_counts)``. On an intact state these are the numbers ``resolve(stats=...)`` adds; a
    caller that samples every so many steps calls this instead. Sums wrap at 64 bits.

    Parameters
    ----------
    valid_counts, refill_counts, resident_counts : Tensor
        ``[rows]``, int32 or int64, any number of rows. Without ``resident_counts`` no entry was resident.
    stats : Tensor
        ``[2]``, int64: hits, misses. Added to.

    Mutates: ``stats``. Graph-safe: yes. Deterministic: bitwise. Cost: reads the counts once.

    Raises
    ------
    ValueError
        A dtype or shape other than above.

    Source: the residency statistics of vLLM's HiSparse connector.
    """
    _residency_stats.call(valid_counts, refill_counts, stats, resident_counts=resident_counts)


_fill_full_visible = define_op("fill_full_visible(Tensor(a!) table) -> ()", family="resolver")


@_fill_full_visible.fake
def _check_fill_full_visible(table: Tensor) -> None:
    check = Checker("fill_full_visible", table.device)
    check.table("table", table, torch.int32, written=True)
    check.size("table", table, 0, "max_visible + 1", table.shape[1] + 1)


@_fill_full_visible.public
def fill_full_visible(table: Tensor) -> None:
    """Fill the full-visible index table: row ``v`` is ``0 .. v - 1``, then -1.

    While a request sees at most ``top_k`` tokens the indexer cannot leave any out, so its scoring may be skipped
    and a slice of this table used instead: see :func:`full_visible_indices`.

    Parameters
    ----------
    table : Tensor
        ``[max_visible + 1, max_visible]``, int32; 16.8 MB at ``max_visible`` = 2048. Written.

    Mutates: ``table``, every element. Graph-safe: yes. Deterministic: bitwise.

    Raises
    ------
    ValueError
        A dtype, shape or stride other than above.

    Source: vllm-ascend #15813.
    """
    _fill_full_visible.call(table)


def full_visible_indices(
    table: Tensor, *, context_length: int, num_tokens: int, num_requests: int, device: torch.device
) -> Tensor | None:
    """Top-k of a short prefill without the indexer, or None where the indexer must run.

    Eligible: one request, at least one token, all visible KV (``context_length + num_tokens``) within the table's
    ``max_visible``, and the table on ``device`` already (a table elsewhere means the indexer runs: no copy is made on
    the request path). The caller adds what only it knows: no speculative rows, no quantised indexer cache.

    Returns a ``[num_tokens, max_visible]`` view of ``table``: token ``i`` sees positions
    ``0 .. context_length + i``. It shares the table's memory and must not be written.
    """
    visible = context_length + num_tokens
    if num_requests != 1 or context_length < 0 or num_tokens < 1 or visible > table.shape[1]:
        return None
    if table.device != device:
        return None
    return table[context_length + 1 : visible + 1]


def new_hot_state(
    num_states: int, hot_size: int, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """``(hot_owner, lru_slots)`` of empty hot buffers: owner -1, LRU ``0 .. hot_size - 1``."""
    owner = torch.full((num_states, hot_size), -1, dtype=torch.int32, device=device)
    lru = torch.arange(hot_size, dtype=torch.int16, device=device).repeat(num_states, 1)
    return owner, lru
