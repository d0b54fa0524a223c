"""Value checks of the resolver ops.

Only what the call uses counts: rows of the tables that belong to requests outside the batch, columns past what
the top-k names and the top-k of padding rows may be of any age.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hisparse_ops.validation._values import (
    Values,
    check_lru,
    check_owners,
    distinct,
    first,
    named_rows,
    on_host,
    validates,
)


@validates("reset_requests")
def _reset_requests(hot_owner: Tensor, lru_slots: Tensor, state_rows: Tensor) -> None:
    """A state row that is listed twice was given to two requests."""
    check = Values("reset_requests")
    states = check.ids("state_rows", state_rows, len(hot_owner), "a state row")
    check.unique("state_rows", states, states >= 0)


@validates("residency_stats")
def _residency_stats(
    valid_counts: Tensor,
    refill_counts: Tensor,
    stats: Tensor,
    *,
    resident_counts: Tensor | None = None,
) -> None:
    """Counts of resolve: none is negative, and no more rows are loaded than the hot buffer answered.

    A run's loads stand in the counts of its first rows, so the last rule holds for the sum only.
    """
    check = Values("residency_stats")
    valid, loads = on_host(valid_counts), on_host(refill_counts)
    resident = torch.zeros_like(valid) if resident_counts is None else on_host(resident_counts)
    for argument, counts in (
        ("valid_counts", valid),
        ("refill_counts", loads),
        ("resident_counts", resident),
    ):
        check.reject(argument, counts, counts < 0, "be at least 0")
    check.reject(
        "resident_counts", resident, resident > valid, "be at most valid_counts of its row"
    )
    answered, total = int((valid - resident).sum()), int(loads.sum())
    if total > answered:
        rule = f"sum up to at most the {answered} entries that the hot buffer answers"
        check.fail("refill_counts", (), rule, total)


@validates("fill_full_visible")
def _fill_full_visible(table: Tensor) -> None:
    """Reads nothing."""


@validates("resolve")
def _resolve(
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
    call = _Resolve(
        Values("resolve"),
        on_host(topk_indices),
        on_host(request_ids),
        on_host(request_state_indices),
        None if source_block_table is None else on_host(source_block_table),
        on_host(hot_block_table),
        None if resident_block_table is None else on_host(resident_block_table),
        None if stable_lengths is None else on_host(stable_lengths),
        host_rows,
        num_blocks,
        block_size,
        source_block_size or block_size,
        resident_block_size or block_size,
    )
    states = call.check_requests(len(hot_owner), hot_owner.shape[1])
    check_owners(call.check, "hot_owner", hot_owner, states, host_rows)
    check_lru(call.check, "lru_slots", lru_slots, states)
    hot_size = hot_owner.shape[1]
    call.check_runs(hot_size, hot_size if max_union_rows is None else max_union_rows)


class _Resolve:
    """One call: tables on the host, and the checks that need several of them."""

    def __init__(
        self,
        check: Values,
        topk: Tensor,
        requests: Tensor,
        states: Tensor,
        source: Tensor | None,
        hot: Tensor,
        resident: Tensor | None,
        stable: Tensor | None,
        host_rows: int,
        num_blocks: int,
        block_size: int,
        source_size: int,
        resident_size: int,
    ) -> None:
        self.check, self.topk, self.requests, self.states = check, topk, requests, states
        self.source, self.hot, self.resident, self.stable = source, hot, resident, stable
        self.host_rows, self.num_blocks, self.block_size = host_rows, num_blocks, block_size
        self.source_size, self.resident_size = source_size, resident_size
        self.hot_taken = topk.new_empty(0)
        """Blocks of the hot buffers that were looked at."""
        self.resident_named: list[tuple[int, Tensor]] = []
        """State row, and which of its resident columns the top-k names."""

    def check_requests(self, num_states: int, hot_size: int) -> Tensor:
        """The chain row -> request -> state row; returns the state rows in use.

        -1 is padding anywhere in it. Two requests of the batch in one state row would evict each other's rows and
        read them.
        """
        tables = [self.states, self.hot, self.source, self.stable]
        count = min(len(t) for t in tables if t is not None)
        if self.resident is not None:
            num_states = min(num_states, len(self.resident))
        check, states = self.check, self.states
        check.within("request_ids", self.requests, -1, count, f"-1 or a request below {count}")
        used = named_rows(self.requests, count)
        batch = torch.zeros(len(states), dtype=torch.bool)
        batch[used] = True
        what = f"-1 or a state row below {num_states}"
        check.within("request_state_indices", states, -1, num_states, what, batch)
        rule = "be a state row of its own"
        check.unique("request_state_indices", states, batch & (states >= 0), rule)
        self.live = used[states[used] >= 0]
        return named_rows(states[self.live], num_states)

    def check_runs(self, hot_size: int, limit: int) -> None:
        """The top-k of every live row, and the blocks that it leads to."""
        needed = -(-hot_size // self.block_size)
        for request in self.live.tolist():
            rows = (self.requests == request).nonzero()[:, 0]
            host, resident = self._translate(request, rows)
            self._check_stable(request)
            wanted = (host >= 0) & ~resident
            if bool(wanted.any()):
                self._check_hot_blocks(request, needed)
            self._check_union(rows, torch.where(wanted, host, -1), limit)
        self._check_resident_apart()

    def _translate(self, request: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Host row of every entry or -1, and whether a resident page answers it."""
        topk = self.topk[rows]
        if self.source is None:
            wrong = (topk < -1) | (topk >= self.host_rows)
            rule = f"be -1 or a host row below {self.host_rows}"
            self._reject_topk(rows, topk, wrong, rule)
            return topk, torch.zeros_like(topk, dtype=torch.bool)
        positions = self.source.shape[1] * self.source_size
        resident = self._resident(request, topk)
        if self.resident is not None:
            positions = max(positions, self.resident.shape[1] * self.resident_size)
        wrong = (topk < -1) | (topk >= positions)
        self._reject_topk(rows, topk, wrong, f"be -1 or a position below {positions}")
        host = self._host_rows(request, topk)
        backed = (topk < 0) | (host >= 0) | resident
        rule = "be a position whose row is on the host or resident"
        self._reject_topk(rows, topk, ~backed, rule)
        return host, resident

    def _reject_topk(self, rows: Tensor, topk: Tensor, wrong: Tensor, rule: str) -> None:
        index = first(wrong)
        if index is not None:
            row, column = index
            place = (int(rows[row]), column)
            self.check.fail("topk_indices", place, rule, int(topk[row, column]))

    def _pages(
        self, argument: str, table: Tensor, row: int, pages: Tensor, high: int, what: str
    ) -> Tensor:
        """The columns of one table row that the top-k names hold a block, or null (0 or -1); returns a mask of
        them."""
        named = torch.zeros(table.shape[1], dtype=torch.bool)
        named[pages] = True
        rule = f"{what}, below {high}, or null (0 or -1)"
        blocks = table[row]
        self.check.within(argument, blocks, -1, high, rule, named, (row,))
        once = "be the block of one page only"
        self.check.unique(argument, blocks, named & (blocks > 0), once, (row,))
        return named

    def _host_rows(self, request: int, topk: Tensor) -> Tensor:
        assert self.source is not None
        page = topk.div(self.source_size, rounding_mode="floor")
        known = (topk >= 0) & (page < self.source.shape[1])
        last = -(-self.host_rows // self.source_size)
        self._pages(
            "source_block_table", self.source, request, distinct(page[known]), last, "a host block"
        )
        host = torch.full_like(topk, -1)
        block = self.source[request][page[known]]
        row = block * self.source_size + topk[known] % self.source_size
        host[known] = torch.where((block > 0) & (row < self.host_rows), row, -1)
        return host

    def _resident(self, request: int, topk: Tensor) -> Tensor:
        answered = torch.zeros_like(topk, dtype=torch.bool)
        if self.resident is None:
            return answered
        page = topk.div(self.resident_size, rounding_mode="floor")
        known = (topk >= 0) & (page < self.resident.shape[1])
        state = int(self.states[request])
        rows = self.num_blocks * self.block_size
        last = -(-rows // self.resident_size)
        pages = distinct(page[known])
        named = self._pages(
            "resident_block_table", self.resident, state, pages, last, "a device block"
        )
        self.resident_named.append((state, named))
        block = self.resident[state][page[known]]
        row = block * self.resident_size + topk[known] % self.resident_size
        answered[known] = (block > 0) & (row < rows)
        return answered

    def _check_stable(self, request: int) -> None:
        if self.stable is not None and int(self.stable[request]) < 0:
            rule = "be a length, at least 0"
            self.check.fail("stable_lengths", (request,), rule, int(self.stable[request]))

    def _check_hot_blocks(self, request: int, needed: int) -> None:
        """A slot without a block can hold nothing; a block of two hot buffers holds the rows of either."""
        blocks = self.hot[request]
        used = torch.arange(len(blocks)) < needed
        what = f"a device block, 1 to {self.num_blocks - 1}"
        self.check.within("hot_block_table", blocks, 1, self.num_blocks, what, used, (request,))
        once = "be the block of one hot buffer column only"
        self.check.unique("hot_block_table", blocks, used, once, (request,))
        shared = used & torch.isin(blocks, self.hot_taken)
        self.check.reject("hot_block_table", blocks, shared, once, (request,))
        self.hot_taken = torch.cat([self.hot_taken, blocks[used]])

    def _check_union(self, rows: Tensor, wanted: Tensor, limit: int) -> None:
        """In the words of the CPU op, which refuses it anyway."""
        starts = torch.ones(len(rows), dtype=torch.bool)
        starts[1:] = rows[1:] != rows[:-1] + 1
        for run in torch.unique(torch.cumsum(starts, 0)).tolist():
            of_run = torch.cumsum(starts, 0) == run
            host = wanted[of_run]
            if len(distinct(host[host >= 0])) > limit:
                rule = f"need at most {limit} distinct host rows in a run"
                got = f"more in the run at row {int(rows[of_run][0])}"
                self.check.fail("topk_indices", (), rule, got)

    def _check_resident_apart(self) -> None:
        """A page that is resident and part of a hot buffer is overwritten by the next refill."""
        if self.resident is None or self.resident_size != self.block_size:
            return
        for state, named in self.resident_named:
            blocks = self.resident[state]
            shared = named & (blocks > 0) & torch.isin(blocks, self.hot_taken)
            rule = "not be a block of a hot buffer"
            self.check.reject("resident_block_table", blocks, shared, rule, (state,))
