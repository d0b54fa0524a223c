"""Faults to put under vLLM on purpose: what tests over Core and the engine must notice.

Each is a mistake that a backend for HiSparse can make, put into the ops as Core's bridge calls them. They matter where
state rows are permuted against batch rows, other layers stand between the pages of the slab, a request has several
query rows in a step, and a hot buffer holds no more than their union.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import hisparse_ops
from hisparse_vllm.core import device

Patch = Callable[[Any, str, Any], None]
"""``setattr`` that a test undoes, as pytest's ``monkeypatch.setattr``."""

resolve, gather_compact = hisparse_ops.resolve, hisparse_ops.gather_compact
copy_row_spans, gather_plan = hisparse_ops.copy_row_spans, hisparse_ops.gather_plan
copy_resident_rows = hisparse_ops.copy_resident_rows

NAMES = (
    "topk_indices",
    "request_ids",
    "request_state_indices",
    "source_block_table",
    "hot_block_table",
    "hot_owner",
    "lru_slots",
    "attention_indices",
    "valid_counts",
    "refill_host_rows",
    "refill_hot_rows",
    "refill_counts",
)


def of_resolve(change: Callable[[dict[str, Any]], None]) -> Callable[[Patch], None]:
    """A fault in what ``resolve`` is given or does: ``change`` makes the calls itself."""

    def inject(patch: Patch) -> None:
        def faulty(*positional: Any, **named: Any) -> None:
            change(dict(zip(NAMES, positional, strict=True)) | named)

        patch(hisparse_ops, "resolve", faulty)

    return inject


def wrong_row(patch: Patch) -> None:
    def faulty(
        host: Tensor, hot: Tensor, host_rows: Tensor, hot_rows: Tensor, counts: Tensor
    ) -> None:
        gather_compact(host, hot, host_rows + 1, hot_rows, counts)

    patch(hisparse_ops, "gather_compact", faulty)


def resident_table_by_batch_row(args: dict[str, Any]) -> None:
    table = args["resident_block_table"].clone()
    for batch_row, state in enumerate(args["request_state_indices"].tolist()):
        if state >= 0:
            table[state] = args["resident_block_table"][batch_row]
    resolve(**args | {"resident_block_table": table})


def attention_block_stride_ignored(args: dict[str, Any]) -> None:
    resolve(**args | {"attention_block_stride": args["block_size"]})


PER_ROW = (
    "topk_indices",
    "request_ids",
    "attention_indices",
    "valid_counts",
    "refill_host_rows",
    "refill_hot_rows",
    "refill_counts",
    "physical_rows",
)


def union_per_batch_row(args: dict[str, Any]) -> None:
    """Every row by itself against the state before the step, as blocks of one launch would see it."""
    state = {name: args[name].clone() for name in ("hot_owner", "lru_slots")}
    for row in range(len(args["topk_indices"])):
        for name, before in state.items():
            args[name].copy_(before)
        resolve(**args | {name: args[name][row : row + 1] for name in PER_ROW})


def plan_packed_per_row(args: dict[str, Any]) -> None:
    """Counts of the loads each row referenced first, over entries packed for the run."""
    mask = torch.zeros_like(args["topk_indices"])
    args["refill_host_rows"].fill_(-1)
    args["refill_hot_rows"].fill_(-1)
    resolve(**args | {"miss_mask": mask})
    args["refill_counts"].copy_(mask.sum(1))


def hits_counted_per_distinct_row(args: dict[str, Any]) -> None:
    stats, size = args["stats"], args["block_size"]
    before = stats.clone()
    resolve(**args)
    rows = torch.unique(args["physical_rows"])
    in_hot_blocks = torch.isin(rows // size, args["hot_block_table"]) & (rows >= size)
    loads = stats[1] - before[1]
    stats[0] = before[0] + int(in_hot_blocks.sum()) - loads


def mirror_skipped(patch: Patch) -> None:
    calls = iter(range(10**9))

    def faulty(sources: Any, destinations: Any, spans: Tensor) -> None:
        copy_row_spans(sources, destinations, spans[1:] if next(calls) % 5 == 4 else spans)

    patch(hisparse_ops, "copy_row_spans", faulty)


def layer_offset_dropped(patch: Patch) -> None:
    """Every layer's refill lands where the first layer's rows are."""

    def faulty(host: Tensor, hot: Tensor, *plan: Tensor) -> None:
        gather_compact(host, hot.as_strided(hot.shape, hot.stride(), 0), *plan)

    patch(hisparse_ops, "gather_compact", faulty)


def written_rows_stay_hot(patch: Patch) -> None:
    patch(hisparse_ops, "invalidate_written", lambda *arguments: None)


def recycled_rows_stay_hot(patch: Patch) -> None:
    worker = importlib.import_module(device.WORKER).HiSparseConnectorWorker
    patch(worker, "invalidate_blocks", lambda self, blocks, states: None)


def staging_from_the_page_before(patch: Patch) -> None:
    def faulty(host: Tensor, hot: Tensor, host_rows: Tensor, *rest: Any, **named: Any) -> None:
        gather_plan(host, hot, (host_rows - 16).clamp(min=0), *rest, **named)

    patch(hisparse_ops, "gather_plan", faulty)


def rows_ahead_not_patched(patch: Patch) -> None:
    """What was staged ahead of a layer misses the rows that this step writes."""

    def faulty(source: Tensor, row_ids: Tensor, staging: Tensor, *, invalid: str) -> None:
        if invalid == "row0":
            copy_resident_rows(source, row_ids, staging, invalid=invalid)

    patch(hisparse_ops, "copy_resident_rows", faulty)


FAULTS: dict[str, Callable[[Patch], None]] = {
    "wrong row": wrong_row,
    "resident table indexed by batch row": of_resolve(resident_table_by_batch_row),
    "attention block stride ignored": of_resolve(attention_block_stride_ignored),
    "union per batch row": of_resolve(union_per_batch_row),
    "plan packed per row": of_resolve(plan_packed_per_row),
    "hits counted per distinct row": of_resolve(hits_counted_per_distinct_row),
    "mirror skipped": mirror_skipped,
    "layer offset dropped": layer_offset_dropped,
    "stale hot row after a write": written_rows_stay_hot,
    "recycled rows stay hot": recycled_rows_stay_hot,
    "staging from the page before": staging_from_the_page_before,
    "rows ahead not patched": rows_ahead_not_patched,
}
