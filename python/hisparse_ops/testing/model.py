"""A server of a few requests next to a table of what each of them wrote: attention must see that table.

:class:`World` does, with the ops, what an engine does around them. ``truth[request, position]`` is the value that the
position holds, -1 none; every row of every layer holds its value plus the layer's number, so a wrong row is a wrong
number. Actions take plain integers; whoever drives it (hypothesis, a loop) chooses them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import hisparse_ops as hs

REQUESTS, STATES, BLOCK, PAGES, TOP_K, MTP, LAYERS = 3, 4, 4, 6, 5, 3, 2
HOT = 18
"""Slots: more than a run of MTP rows needs (15), fewer than a request has rows (24), so that they evict."""

CONTEXT = PAGES * BLOCK
HOST_BLOCKS = 1 + REQUESTS * PAGES - 4  # not enough for all: blocks are recycled
HOT_BLOCKS = -(-HOT // BLOCK)
RESIDENT_BLOCKS = 5
DEVICE_BLOCKS = 1 + REQUESTS * HOT_BLOCKS + RESIDENT_BLOCKS

_INT = torch.int32


@dataclass
class Counts:
    """What was done."""

    calls: int = 0
    actions: int = 0
    rows_checked: int = 0
    hits: int = 0
    loads: int = 0


class World:
    """Pools, tables and the truth."""

    def __init__(self, counts: Counts | None = None) -> None:
        self.counts = counts or Counts()
        self.host = [torch.full((HOST_BLOCKS * BLOCK, 1), -99) for _ in range(LAYERS)]
        self.slab = [torch.full((DEVICE_BLOCKS, BLOCK, 1), -98) for _ in range(LAYERS)]
        self.source = torch.zeros(REQUESTS, PAGES, dtype=_INT)
        self.hot_table = (1 + torch.arange(REQUESTS * HOT_BLOCKS)).view(REQUESTS, -1).to(_INT)
        self.resident = torch.zeros(STATES, PAGES, dtype=_INT)
        self.states = torch.full((REQUESTS,), -1, dtype=_INT)
        self.owner, self.lru = hs.new_hot_state(STATES, HOT)
        self.truth = torch.full((REQUESTS, CONTEXT), -1)
        self.length = [0] * REQUESTS
        self.stable = torch.zeros(REQUESTS, dtype=_INT)
        """Positions from here on may have been written again without an invalidate."""
        self.free_host = list(range(1, HOST_BLOCKS))
        first = 1 + REQUESTS * HOT_BLOCKS
        self.free_device = list(range(first, first + RESIDENT_BLOCKS))
        self.free_states = list(range(STATES))
        self.next_value = 0
        self.stats = torch.zeros(2, dtype=torch.int64)
        self._outputs: dict[int, dict[str, Tensor]] = {}

    def call(self, op: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        self.counts.calls += 1
        op(*args, **kwargs)

    def live(self) -> list[int]:
        return [r for r in range(REQUESTS) if self.length[r] > 0]

    # Life cycle

    def admit(self, request: int, length: int) -> None:
        """A prompt: pages, a state row that may be another request's old one, all rows written."""
        pages = -(-length // BLOCK)
        if self.length[request] or pages > len(self.free_host):
            return
        state = self.free_states.pop()
        self.states[request] = state
        self.call(hs.reset_requests, self.owner, self.lru, torch.tensor([state], dtype=_INT))
        self.stable[request] = CONTEXT
        self.write(request, length)

    def free(self, request: int) -> None:
        """Blocks go back; the state row is left as it is, for the next request's reset."""
        if not self.length[request]:
            return
        state = int(self.states[request])
        for page in range(PAGES):
            self._drop_page(request, page, invalidate=False)
        self.free_states.insert(0, state)
        self.states[request] = -1
        self.truth[request] = -1
        self.length[request] = 0

    def recycle_last_page(self, request: int) -> None:
        """The tail goes away and its host block to whoever comes: hot copies of it must be forgotten."""
        page = (self.length[request] - 1) // BLOCK
        if page < 1:
            return
        self.length[request] = page * BLOCK
        self.truth[request, page * BLOCK :] = -1
        self._drop_page(request, page, invalidate=True)

    def _drop_page(self, request: int, page: int, *, invalidate: bool) -> None:
        block, state = int(self.source[request, page]), int(self.states[request])
        if block and invalidate:
            rows = torch.arange(block * BLOCK, (block + 1) * BLOCK)
            everyone = torch.arange(STATES, dtype=_INT)
            self.call(hs.invalidate_recycled, [self.owner], everyone, rows)
        if block:
            self.free_host.append(block)
            self.source[request, page] = 0
        if self.resident[state, page]:
            self.free_device.append(int(self.resident[state, page]))
            self.resident[state, page] = 0

    # Writing

    def write(self, request: int, count: int) -> None:
        """New tokens at the end."""
        count = min(count, CONTEXT - self.length[request])
        self._write(request, range(self.length[request], self.length[request] + count))

    def reject(self, request: int, count: int, invalidate: bool) -> None:
        """The last drafts were wrong: their positions are written again, with or without an invalidate."""
        first = max(0, self.length[request] - count)
        if not self.length[request]:
            return
        if not invalidate:
            self.stable[request] = min(int(self.stable[request]), first)
        self._write(request, range(first, self.length[request]), invalidate=invalidate)

    def _write(self, request: int, positions: range, invalidate: bool = True) -> None:
        state = int(self.states[request])
        if state < 0:
            return
        kept = []
        for position in positions:
            page = position // BLOCK
            if not self.source[request, page]:
                if not self.free_host:
                    break
                self.source[request, page] = self.free_host.pop()
            kept.append(position)
        if not kept:
            return
        at = torch.tensor(kept)
        values = torch.arange(self.next_value, self.next_value + 8 * len(kept), 8)
        self.next_value += 8 * len(kept)
        slots = self.source[request][at // BLOCK].long() * BLOCK + at % BLOCK
        here = self.resident[state][at // BLOCK].long()
        on_device = torch.where(here > 0, here * BLOCK + at % BLOCK, -1)
        rows = [values[:, None] + layer for layer in range(LAYERS)]
        # Rows of resident pages go to the device and are mirrored; the others go to the host at once.
        host_slots = torch.where(here > 0, -1, slots)
        self.call(hs.scatter_rows, rows, on_device, self.slab)
        self.call(hs.scatter_rows, rows, host_slots, self.host)
        mirrored = here > 0
        ones = torch.ones_like(slots)
        spans = torch.stack([on_device, slots, ones], 1)[mirrored]
        self.call(hs.copy_row_spans, self.slab, self.host, spans)
        if invalidate:
            ids = torch.full((len(kept),), request, dtype=_INT)
            self.call(hs.invalidate_written, [self.owner], self.states, ids, slots)
        self.truth[request, at] = values
        self.length[request] = max(self.length[request], kept[-1] + 1)

    # Resident pages

    def restore(self, request: int, page: int) -> None:
        """Host to device: the page answers from now on."""
        self._move(request, page, to_device=True)

    def spill(self, request: int, page: int) -> None:
        """Device to host: the page is not resident any more."""
        self._move(request, page, to_device=False)

    def _move(self, request: int, page: int, *, to_device: bool) -> None:
        state = int(self.states[request])
        if state < 0 or not self.source[request, page]:
            return
        if to_device == bool(self.resident[state, page]) or (to_device and not self.free_device):
            return
        host = [h.view(HOST_BLOCKS, BLOCK, 1) for h in self.host]
        if to_device:
            block = self.free_device.pop()
            pairs = torch.tensor([[int(self.source[request, page]), block]], dtype=_INT)
            self.call(hs.copy_pages, host, self.slab, pairs)
            self.resident[state, page] = block
        else:
            block = int(self.resident[state, page])
            pairs = torch.tensor([[block, int(self.source[request, page])]], dtype=_INT)
            self.call(hs.copy_pages, self.slab, host, pairs)
            self.resident[state, page] = 0
            self.free_device.append(block)

    # Attention

    def step(self, seed: int, mtp: int, padding: int) -> None:
        """One decode step of all requests; every layer must see the truth."""
        gen = torch.Generator().manual_seed(seed)
        live = self.live()
        ids = torch.tensor([r for r in live for _ in range(mtp)] + [-1] * padding, dtype=_INT)
        rows = len(ids)
        lengths = torch.tensor([max(1, self.length[max(r, 0)]) for r in ids.tolist()])
        topk = (torch.rand(rows, TOP_K, generator=gen) * lengths[:, None]).long()
        topk[torch.rand(rows, TOP_K, generator=gen) < 0.15] = -1
        out = self._out(rows)
        prefix = bool(seed & 1)
        self.call(
            hs.resolve,
            topk,
            ids,
            self.states,
            self.source,
            self.hot_table,
            self.owner,
            self.lru,
            **out,
            host_rows=HOST_BLOCKS * BLOCK,
            num_blocks=DEVICE_BLOCKS,
            block_size=BLOCK,
            layout="prefix" if prefix else "column",
            resident_block_table=self.resident,
            stable_lengths=self.stable,
            stats=self.stats,
        )
        plan = out["refill_host_rows"], out["refill_hot_rows"], out["refill_counts"]
        self.call(hs.gather_compact, self.host[0], self.slab[0], *plan)
        for layer in range(1, LAYERS):
            self.call(
                hs.gather_plan,
                self.host[layer],
                self.slab[layer],
                out["resolved_host_rows"],
                out["physical_rows"],
                out["miss_mask"],
            )
        self._check(ids, topk, out, prefix)

    def _out(self, rows: int) -> dict[str, Tensor]:
        """Outputs at fixed addresses, as a captured graph has them; what the last step left stays in them."""
        if rows not in self._outputs:
            grids = ["attention_indices", "refill_host_rows", "refill_hot_rows"]
            grids += ["physical_rows", "resolved_host_rows", "miss_mask"]
            made = {n: torch.full((rows, TOP_K), 123456, dtype=_INT) for n in grids}
            for name in ("valid_counts", "refill_counts", "resident_counts"):
                made[name] = torch.full((rows,), 123456, dtype=_INT)
            self._outputs[rows] = made
        return self._outputs[rows]

    def _check(self, ids: Tensor, topk: Tensor, out: dict[str, Tensor], prefix: bool) -> None:
        known = (topk >= 0) & (ids >= 0)[:, None]
        expected = torch.where(
            known, self.truth[ids.long().clamp(min=0)[:, None], topk.clamp(min=0)], -1
        )
        assert bool((expected[known] >= 0).all()), "the model selects what was written"
        at = out["attention_indices"].long()
        assert torch.equal(out["valid_counts"].long(), known.sum(1)), "a token is masked"
        if prefix:
            order = torch.sort((~known).to(torch.int8), dim=1, stable=True).indices
            expected = expected.gather(1, order)
        for layer, slab in enumerate(self.slab):
            seen = torch.where(at >= 0, slab.view(-1)[at.clamp(min=0)] - layer, -1)
            if not torch.equal(seen, expected):
                row, column = (seen != expected).nonzero()[0].tolist()
                raise AssertionError(
                    f"layer {layer}, row {row}, column {column} of request {int(ids[row])}: attention sees"
                    f" {int(seen[row, column])}, written was {int(expected[row, column])}"
                )
        self.counts.rows_checked += int(known.sum()) * LAYERS

    def prove(self) -> None:
        """Every owned slot of settled requests against the host, every resident page too."""
        settled = [r for r in self.live() if int(self.stable[r]) == CONTEXT]
        hs.check_state(
            self.owner,
            self.lru,
            self.hot_table,
            self.states,
            self.host,
            self.slab,
            source_block_table=self.source,
            resident_block_table=self.resident,
            lengths=torch.tensor(self.length),
            requests=settled,
        )

    def settle(self, request: int) -> None:
        """The engine knows the drafts now: what may be stale is invalidated, and the stable length is lifted."""
        first, length = int(self.stable[request]), self.length[request]
        if first >= CONTEXT or not length:
            return
        at = torch.arange(first, max(first, length))
        slots = self.source[request][at // BLOCK].long() * BLOCK + at % BLOCK
        ids = torch.full((len(at),), request, dtype=_INT)
        self.call(hs.invalidate_written, [self.owner], self.states, ids, slots)
        self.stable[request] = CONTEXT


def drive(seed: int, calls: int, prove_every: int = 50) -> Counts:
    """Random actions until that many ops were called."""
    rng, counts = random.Random(seed), Counts()
    world = World(counts)
    while counts.calls < calls:
        act(world, rng.randrange(20), rng.randrange(REQUESTS), rng.randrange(2**20))
        counts.actions += 1
        if counts.actions % prove_every == 0:
            world.prove()
    counts.hits, counts.loads = world.stats.tolist()
    return counts


def act(world: World, kind: int, request: int, number: int) -> None:
    """One action of twenty, half of them steps."""
    if kind < 10:
        world.step(number, 1 + number % MTP, number // 7 % 3)
    elif kind < 12:
        world.admit(request, 1 + number % CONTEXT)
    elif kind < 14:
        world.write(request, 1 + number % 4)
    elif kind < 15:
        world.reject(request, 1 + number % 4, invalidate=True)
    elif kind < 16:
        world.reject(request, 1 + number % 4, invalidate=False)
    elif kind < 17:
        world.settle(request)
    elif kind < 18:
        world.restore(request, number % PAGES)
    elif kind < 19:
        world.spill(request, number % PAGES)
    elif number % 3:
        world.recycle_last_page(request)
    else:
        world.free(request)
