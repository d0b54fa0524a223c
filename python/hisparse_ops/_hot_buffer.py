"""What a serving engine keeps around the ops: block tables, owner and LRU, the plan. For the demo and the replay."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

import hisparse_ops

OPS = ("reset_requests", "resolve", "gather_compact")
"""Ops that every user of this module calls."""


@dataclass(frozen=True)
class Geometry:
    """Sizes, in rows (tokens) unless the name says otherwise."""

    max_lengths: tuple[int, ...]
    """Tokens that each request may reach."""
    query_rows: int
    """Query rows of a request in one step: 1, or the tokens of an MTP verification."""
    top_k: int
    hot_size: int
    block_size: int
    resident_pages: tuple[int, ...] = ()
    """Leading pages of each request that stay on the device; empty for none."""

    @property
    def requests(self) -> int:
        return len(self.max_lengths)

    @property
    def batch_rows(self) -> int:
        return self.requests * self.query_rows

    @property
    def hot_blocks(self) -> int:
        """Blocks of one request's hot buffer."""
        return self.blocks(self.hot_size)

    def blocks(self, rows: int) -> int:
        return -(-rows // self.block_size)


class Tables:
    """Block tables of all requests. Blocks are dealt out in random order, and block 0 is the null block of both."""

    def __init__(self, geometry: Geometry, seed: int) -> None:
        self.geometry = geometry
        self.generator = generator = torch.Generator().manual_seed(seed)
        pages = [geometry.blocks(n) for n in geometry.max_lengths]
        resident = list(geometry.resident_pages) or [0] * geometry.requests
        hot = [geometry.hot_blocks] * geometry.requests
        self.host_rows = (1 + sum(pages)) * geometry.block_size
        self.num_blocks = 1 + sum(hot) + sum(resident)
        self.source = _deal(pages, max(pages), generator)
        on_device = _deal([h + r for h, r in zip(hot, resident, strict=True)], None, generator)
        self.hot = on_device[:, : geometry.hot_blocks].contiguous()
        # Requests sit in state rows in reverse, and one state row belongs to nobody.
        self.states = geometry.requests + 1
        self.state_indices = torch.arange(geometry.requests, 0, -1, dtype=torch.int32)
        self.resident = self._resident_table(on_device[:, geometry.hot_blocks :])
        self.request_ids = torch.arange(geometry.requests, dtype=torch.int32).repeat_interleave(
            geometry.query_rows
        )

    def _resident_table(self, blocks: Tensor) -> Tensor | None:
        if blocks.shape[1] == 0:
            return None
        table = torch.zeros(self.states, blocks.shape[1], dtype=torch.int32)
        table[self.state_indices.long()] = blocks
        return table

    def host_row(self, request_ids: Tensor, positions: Tensor) -> Tensor:
        """int64 host row of each position; positions must lie in an allocated page."""
        block_size = self.geometry.block_size
        block = self.source[request_ids.long(), positions // block_size].long()
        return block * block_size + positions % block_size

    def resident_pages(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Host block and device block of the resident pages of each request."""
        if self.resident is None:
            return
        for request, state in enumerate(self.state_indices.tolist()):
            count = self.geometry.resident_pages[request]
            yield self.source[request, :count].long(), self.resident[state, :count].long()


def _deal(counts: list[int], width: int | None, generator: torch.Generator) -> Tensor:
    """``[len(counts), width]`` int32: blocks 1, 2, ... in random order, ``counts[i]`` in row i, then null."""
    shuffled = torch.randperm(sum(counts), generator=generator).to(torch.int32) + 1
    table = torch.zeros(len(counts), width or max(counts), dtype=torch.int32)
    for row, blocks in zip(table, torch.split(shuffled, counts), strict=True):
        row[: blocks.numel()] = blocks
    return table


@dataclass
class Clock:
    """Wall time and calls of each op."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    @contextmanager
    def measure(self, op: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[op] += time.perf_counter() - start
        self.calls[op] += 1

    def forget(self, *ops: str) -> None:
        """Start over with ``ops``."""
        for op in ops:
            self.seconds.pop(op, None)
            self.calls.pop(op, None)


@dataclass
class Counters:
    """What the hot buffers of one run did, per step summed over the index groups."""

    hits: list[int] = field(default_factory=list)
    misses: list[int] = field(default_factory=list)
    evictions: list[int] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)

    def start_step(self) -> None:
        for counts in (self.hits, self.misses, self.evictions, self.resident):
            counts.append(0)

    def hit_rate(self, warmup: int = 0) -> float:
        """Share of references answered without a load of their own, from step ``warmup`` on."""
        hits, misses = sum(self.hits[warmup:]), sum(self.misses[warmup:])
        return hits / (hits + misses) if hits + misses else float("nan")


class IndexGroup:
    """Owner, LRU and plan of the layers that share one top-k."""

    def __init__(self, tables: Tables, clock: Clock, counters: Counters) -> None:
        self.tables, self.clock, self.counters = tables, clock, counters
        geometry = tables.geometry
        # As earlier requests left them: a step before the reset would serve their rows.
        states = (tables.states, geometry.hot_size)
        self.owner = torch.randint(
            0, tables.host_rows, states, dtype=torch.int32, generator=tables.generator
        )
        self.lru = torch.zeros(states, dtype=torch.int16)
        batch = (geometry.batch_rows, geometry.top_k)
        self.attention_indices = torch.empty(batch, dtype=torch.int32)
        self.refill_host_rows = torch.empty(batch, dtype=torch.int32)
        self.refill_hot_rows = torch.empty(batch, dtype=torch.int32)
        self.valid_counts = torch.empty(geometry.batch_rows, dtype=torch.int32)
        self.refill_counts = torch.empty(geometry.batch_rows, dtype=torch.int32)
        self.resident_counts = torch.zeros(geometry.batch_rows, dtype=torch.int32)
        self.stats = torch.zeros(2, dtype=torch.int64)

    def reset(self) -> None:
        """Give the state rows to the requests of the tables."""
        with self.clock.measure("reset_requests"):
            hisparse_ops.reset_requests(self.owner, self.lru, self.tables.state_indices)

    def resolve(self, topk: Tensor, stable_lengths: Tensor, block_stride: int) -> None:
        """Find or make a slot for everything in ``topk``; afterwards the plan says what to copy into them."""
        tables, before = self.tables, self.owner.clone()
        self.stats.zero_()
        with self.clock.measure("resolve"):
            hisparse_ops.resolve(
                topk,
                tables.request_ids,
                tables.state_indices,
                tables.source,
                tables.hot,
                self.owner,
                self.lru,
                self.attention_indices,
                self.valid_counts,
                self.refill_host_rows,
                self.refill_hot_rows,
                self.refill_counts,
                host_rows=tables.host_rows,
                num_blocks=tables.num_blocks,
                block_size=tables.geometry.block_size,
                attention_block_stride=block_stride,
                resident_block_table=tables.resident,
                stable_lengths=stable_lengths,
                resident_counts=self.resident_counts,
                stats=self.stats,
            )
        self._count(before)

    def _count(self, before: Tensor) -> None:
        hits, misses = self.stats.tolist()
        evicted = (before >= 0) & (self.owner >= 0) & (self.owner != before)
        self.counters.hits[-1] += hits
        self.counters.misses[-1] += misses
        self.counters.evictions[-1] += int(evicted.sum())
        self.counters.resident[-1] += int(self.resident_counts.sum())

    def refill(self, host: Tensor, slab: Tensor) -> None:
        """Copy the planned rows of one layer from the host cache into the hot buffers."""
        with self.clock.measure("gather_compact"):
            hisparse_ops.gather_compact(
                host, slab, self.refill_host_rows, self.refill_hot_rows, self.refill_counts
            )
