"""Run a top-k trace through resolve and gather_compact, and check every row that comes out."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hisparse_ops import _cli, traces
from hisparse_ops._hot_buffer import Clock, Counters, Geometry, IndexGroup, Tables
from hisparse_ops.resolver import MAX_HOT_SIZE


@dataclass(frozen=True)
class Replay:
    """What one hot size did with one trace."""

    hot_size: int
    steps: int
    groups: int
    warmup: int
    """Steps left out of ``hit_rate``, ``*_per_step`` and ``op_us``."""
    hit_rate: float
    misses_per_step: float
    """Rows loaded in a step by all requests and groups."""
    evictions_per_step: float
    refill_bytes_per_step: float
    total_hits: int
    """``total_*``, ``wrong_rows`` and ``miss_timeline`` cover all steps."""
    total_misses: int
    total_evictions: int
    total_refill_bytes: int
    wrong_rows: int
    """Entries whose bytes in the hot buffer were not those of the host row."""
    op_us: dict[str, float]
    """Microseconds of one call of each op, mean. ``reset_requests`` runs before the first step."""
    miss_timeline: list[int]


class _Group:
    """One index group with the bytes of one layer."""

    def __init__(self, group: IndexGroup, host: Tensor) -> None:
        tables = group.tables
        block_size = tables.geometry.block_size
        self.group, self.host = group, host
        self.slab = torch.full(
            (tables.num_blocks, block_size, host.shape[1]), 0xFF, dtype=torch.uint8
        )

    def step(self, topk: Tensor, stable_lengths: Tensor) -> None:
        self.group.resolve(topk, stable_lengths, self.slab.shape[1])
        if self.host.shape[1]:
            self.group.refill(self.host, self.slab)

    def corrupt(self) -> None:
        """Flip the bits of the row that answers the first valid entry."""
        answered = self.group.attention_indices.flatten()
        row = answered[answered >= 0][:1].long()
        self.slab.flatten(0, 1)[row] ^= 0xFF

    def wrong_rows(self, topk: Tensor) -> int:
        """Compare what attention would read with the host rows, found without the op."""
        used = topk >= 0
        request_ids = self.group.tables.request_ids[:, None].expand_as(topk)[used]
        expected = self.host.index_select(
            0, self.group.tables.host_row(request_ids, topk[used].long())
        )
        answered = self.group.attention_indices[used].long()
        found = self.slab.flatten(0, 1).index_select(0, answered.clamp_min(0))
        wrong = (_words(found) != _words(expected)).any(-1) | (answered < 0)
        unasked = (self.group.attention_indices[~used] != -1).sum()
        return int(wrong.sum() + unasked)


def _words(rows: Tensor) -> Tensor:
    """The same bytes in elements as wide as the rows allow: cheaper to compare."""
    return rows.view(torch.int64) if rows.shape[1] % 8 == 0 else rows


def _random_bytes(rows: int, width: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(-(2**63), 2**63 - 1, (rows, -(-width // 8)), generator=generator)
    return words.view(torch.uint8)[:, :width].contiguous()


def replay(
    trace: traces.Trace,
    hot_size: int,
    *,
    row_bytes: int = 656,
    block_size: int = 64,
    warmup: int = 0,
    seed: int = 0,
    corrupt: bool = False,
) -> Replay:
    """Replay ``trace`` with hot buffers of ``hot_size`` slots; ``row_bytes=0`` resolves only.

    Each index group has the rows of one layer, random bytes. ``corrupt`` spoils one row in the middle of the run,
    or in the first step after it that selects something.
    """
    check_sizes(trace, hot_size, row_bytes, block_size)
    spoiled = _first_selection(trace) if corrupt and row_bytes else None
    geometry = _geometry(trace, hot_size, block_size)
    tables, clock, counters = Tables(geometry, seed), Clock(), Counters()
    host = _random_bytes(tables.host_rows, row_bytes, seed)
    groups = [_Group(IndexGroup(tables, clock, counters), host) for _ in range(trace.groups)]
    for group in groups:
        group.group.reset()
    wrong = 0
    for step in range(trace.steps):
        counters.start_step()
        if step == warmup:
            clock.forget("resolve", "gather_compact")
        stable = torch.from_numpy(trace.stable_lengths[step])
        for i, group in enumerate(groups):
            topk = torch.from_numpy(trace.topk[step, i])
            group.step(topk, stable)
            if (step, i) == spoiled:
                group.corrupt()
            wrong += group.wrong_rows(topk) if row_bytes else 0
    return _summary(trace, geometry, clock, counters, wrong, row_bytes, warmup)


def _geometry(trace: traces.Trace, hot_size: int, block_size: int) -> Geometry:
    return Geometry(
        max_lengths=tuple(int(n) for n in trace.lengths.max(0)),
        query_rows=trace.mtp_rows,
        top_k=trace.top_k,
        hot_size=hot_size,
        block_size=block_size,
    )


def _first_selection(trace: traces.Trace) -> tuple[int, int]:
    """Step and index group of the first selection from the middle of the trace on."""
    middle = trace.steps // 2
    selecting = np.argwhere((trace.topk[middle:] >= 0).any((2, 3)))
    if not selecting.size:
        raise _cli.UsageError(
            f"this trace selects nothing from step {middle + 1} of {trace.steps} on, so no row can be corrupted"
        )
    step, group = (int(i) for i in selecting[0])
    return middle + step, group


def check_sizes(trace: traces.Trace, hot_size: int, row_bytes: int, block_size: int) -> None:
    """Refuse a hot buffer that cannot serve the trace, and a replay that does not fit."""
    _check_hot_size(trace, hot_size)
    _check_memory(_geometry(trace, hot_size, block_size), trace.groups, row_bytes)


def _check_hot_size(trace: traces.Trace, hot_size: int) -> None:
    needed = max(trace.top_k, trace.largest_union())
    if needed > MAX_HOT_SIZE:
        raise _cli.UsageError(
            f"one step of this trace needs {needed} rows of a request, and a hot buffer has at most {MAX_HOT_SIZE}"
        )
    if not needed <= hot_size <= MAX_HOT_SIZE:
        raise _cli.UsageError(
            f"hot size must be between {needed} (one step of this trace needs that many rows) and"
            f" {MAX_HOT_SIZE}, got {hot_size}"
        )


def _check_memory(geometry: Geometry, groups: int, row_bytes: int) -> None:
    """All groups share the host cache and the block tables; each has a slab, owner and LRU of its own."""
    pages = [geometry.blocks(n) for n in geometry.max_lengths]
    host = (1 + sum(pages)) * geometry.block_size
    slab = (1 + geometry.requests * geometry.hot_blocks) * geometry.block_size
    if max(host, slab) >= 2**31:
        raise _cli.UsageError(
            f"host cache and slab must stay below {2**31} rows, got {host} and {slab}; use a smaller --block-size"
        )
    states = groups * (geometry.requests + 1) * geometry.hot_size * 6
    tables = 4 * geometry.requests * (max(pages) + geometry.hot_blocks) + states
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if (host + groups * slab) * row_bytes + tables > memory // 2:
        raise _cli.UsageError(
            f"a replay with hot size {geometry.hot_size} would take {host * row_bytes >> 20} MiB for the host cache,"
            f" {groups} x {slab * row_bytes >> 20} MiB for slabs and {tables >> 20} MiB for tables, more than half of"
            f" this machine's {memory >> 20} MiB; use a smaller --row-bytes or --block-size"
        )


def _summary(
    trace: traces.Trace,
    geometry: Geometry,
    clock: Clock,
    counters: Counters,
    wrong_rows: int,
    row_bytes: int,
    warmup: int,
) -> Replay:
    measured = trace.steps - warmup
    misses = sum(counters.misses[warmup:])
    return Replay(
        hot_size=geometry.hot_size,
        steps=trace.steps,
        groups=trace.groups,
        warmup=warmup,
        hit_rate=counters.hit_rate(warmup),
        misses_per_step=misses / measured,
        evictions_per_step=sum(counters.evictions[warmup:]) / measured,
        refill_bytes_per_step=misses * row_bytes / measured,
        total_hits=sum(counters.hits),
        total_misses=sum(counters.misses),
        total_evictions=sum(counters.evictions),
        total_refill_bytes=sum(counters.misses) * row_bytes,
        wrong_rows=wrong_rows,
        op_us={op: 1e6 * clock.seconds[op] / clock.calls[op] for op in clock.calls},
        miss_timeline=counters.misses,
    )
