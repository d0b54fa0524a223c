"""Oracle of ``resolve``: one run after the other, Python lists and dictionaries."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


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
    rows, top_k = topk_indices.shape
    request_tables = [request_state_indices, hot_block_table, source_block_table, stable_lengths]
    num_requests = min(len(t) for t in request_tables if t is not None)
    state_tables = [hot_owner, lru_slots, resident_block_table]
    num_states = min(len(t) for t in state_tables if t is not None)
    limit = hot_owner.shape[1] if max_union_rows is None else max_union_rows
    stride = block_size if attention_block_stride is None else attention_block_stride

    requests, states = request_ids.tolist(), request_state_indices.tolist()
    runs = []
    first = 0
    for row in range(rows):
        if row + 1 < rows and requests[row + 1] == requests[row]:
            continue
        request = requests[row]
        state = states[request] if 0 <= request < num_requests else -1
        entries = topk_indices[first : row + 1].tolist()
        runs.append(Run(first, entries, request, state if 0 <= state < num_states else -1))
        first = row + 1

    for run in runs:
        if run.state < 0:
            continue
        run.translate(
            None if source_block_table is None else source_block_table[run.request].tolist(),
            source_block_size or block_size,
            host_rows,
            [] if resident_block_table is None else resident_block_table[run.state].tolist(),
            resident_block_size or block_size,
            num_blocks * block_size,
        )
        if len(run.union()) > limit:
            raise ValueError(
                f"resolve: topk_indices must need at most {limit} distinct host rows in a run,"
                f" got more in the run at row {run.first}"
            )

    for run in runs:
        blocks = hot_block_table[run.request].tolist() if run.state >= 0 else []

        def hot_row(slot: int, blocks: list[int] = blocks) -> int:
            block = blocks[slot // block_size]
            return block * block_size + slot % block_size if 0 < block < num_blocks else -1

        if run.state >= 0:
            owner, lru = hot_owner[run.state].tolist(), lru_slots[run.state].tolist()
            if stable_lengths is not None and source_block_table is not None:
                run.drop_unstable(
                    owner,
                    source_block_table[run.request].tolist(),
                    source_block_size or block_size,
                    int(stable_lengths[run.request]),
                )
            run.commit(owner, lru, hot_row)
            hot_owner[run.state] = torch.tensor(owner, dtype=torch.int32)
            lru_slots[run.state] = torch.tensor(lru, dtype=torch.int16)

        for miss, (host, hot) in enumerate(run.plan):
            row, column = run.first + miss // top_k, miss % top_k
            refill_host_rows[row, column] = host
            refill_hot_rows[row, column] = hot
        for i in range(len(run.entries)):
            physical = run.physical_row(i)
            translated = run.host[i] if run.state >= 0 else [-1] * top_k
            loads = [int((i, j) in run.loads) for j in range(top_k)]
            order = list(range(top_k))
            if layout == "prefix":
                order.sort(key=lambda j, physical=physical: physical[j] < 0)
            attention = [
                p // block_size * stride + p % block_size if p >= 0 else -1 for p in physical
            ]
            row = run.first + i
            for output, values in (
                (attention_indices, attention),
                (physical_rows, physical),
                (resolved_host_rows, translated),
                (miss_mask, loads),
            ):
                if output is not None:
                    output[row] = torch.tensor([values[j] for j in order], dtype=torch.int32)
            valid_counts[row] = sum(p >= 0 for p in physical)
            refill_counts[row] = min(max(len(run.plan) - i * top_k, 0), top_k)
            if resident_counts is not None:
                resident_counts[row] = sum(p >= 0 for p in run.resident[i]) if run.state >= 0 else 0
            if stats is not None and run.state >= 0:
                answered = sum(p >= 0 for p in physical) - sum(p >= 0 for p in run.resident[i])
                stats[0] += answered - sum(loads)
                stats[1] += sum(loads)


@dataclass
class Run:
    """Consecutive rows of one request: one transaction on one state row."""

    first: int
    entries: list[list[int]]
    request: int
    state: int
    host: list[list[int]] = field(default_factory=list)
    resident: list[list[int]] = field(default_factory=list)
    slot_row: dict[int, int] = field(default_factory=dict)
    """Physical row that answers a host row."""
    plan: list[tuple[int, int]] = field(default_factory=list)
    loads: set[tuple[int, int]] = field(default_factory=set)
    """(row in the run, column) of the first reference of every row that is loaded."""

    def translate(
        self,
        source: list[int] | None,
        source_block_size: int,
        host_rows: int,
        resident: list[int],
        resident_block_size: int,
        device_rows: int,
    ) -> None:
        def host_row(position: int) -> int:
            if position < 0:
                return -1
            if source is None:
                return position if position < host_rows else -1
            page = position // source_block_size
            if page >= len(source) or source[page] <= 0:
                return -1
            row = source[page] * source_block_size + position % source_block_size
            return row if row < host_rows else -1

        def resident_row(position: int) -> int:
            page = position // resident_block_size
            if position < 0 or page >= len(resident) or resident[page] <= 0:
                return -1
            row = resident[page] * resident_block_size + position % resident_block_size
            return row if row < device_rows else -1

        self.host = [[host_row(p) for p in row] for row in self.entries]
        self.resident = [[resident_row(p) for p in row] for row in self.entries]

    def references(self) -> list[tuple[int, int, int]]:
        """(row in the run, column, host row) of every entry that the hot buffer must answer."""
        return [
            (i, j, host)
            for i, row in enumerate(self.host)
            for j, host in enumerate(row)
            if host >= 0 and self.resident[i][j] < 0
        ]

    def union(self) -> list[int]:
        """Distinct host rows of the references, in order of first reference."""
        return list(dict.fromkeys(host for _, _, host in self.references()))

    def drop_unstable(
        self, owner: list[int], source: list[int], source_block_size: int, stable: int
    ) -> None:
        if not self.union() and not any(p >= 0 for row in self.resident for p in row):
            return
        unstable = {
            source[position // source_block_size] * source_block_size + position % source_block_size
            for position in range(max(stable, 0), len(source) * source_block_size)
            if source[position // source_block_size] > 0
        }
        for slot, row in enumerate(owner):
            if row in unstable:
                owner[slot] = -1

    def commit(self, owner: list[int], lru: list[int], hot_row) -> None:  # type: ignore[no-untyped-def]
        union = self.union()
        if not union:
            return
        wanted = set(union)
        slots: dict[int, int] = {}
        hits, others = [], []
        for slot in lru:
            if 0 <= slot < len(owner) and owner[slot] in wanted:
                hits.append(slot)
                slots.setdefault(owner[slot], slot)
            else:
                others.append(slot)
        misses = [host for host in union if host not in slots]
        victims = others[: len(misses)]
        taken: set[int] = set()
        for miss, host in enumerate(misses):
            hot = -1
            slot = victims[miss] if miss < len(victims) else -1
            if 0 <= slot < len(owner) and slot not in taken:
                taken.add(slot)
                hot = hot_row(slot)
                owner[slot] = host if hot >= 0 else -1
            self.slot_row[host] = hot
            self.plan.append((host, hot))
        lru[:] = others[len(misses) :] + victims + hits
        for host, slot in slots.items():
            self.slot_row[host] = hot_row(slot)
        loaded = {host for host, hot in self.plan if hot >= 0}
        for i, j, host in self.references():
            if host in loaded:
                loaded.remove(host)
                self.loads.add((i, j))

    def physical_row(self, i: int) -> list[int]:
        """Physical row that answers each column of row ``i``, -1 for none."""
        if self.state < 0:
            return [-1] * len(self.entries[i])
        answers = list(self.resident[i])
        for row, column, host in self.references():
            if row == i:
                answers[column] = self.slot_row[host]
        return answers
