"""The samples as a healthy program would make them, and single elements of them corrupted.

Samples are full of values that no healthy program holds, since ops must take them. :func:`tame` replaces those and
leaves shapes, dtypes, strides and everything else as it is; :func:`is_wild` says whether a sample has any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hisparse_ops.checks import num_rows
from hisparse_ops.testing.buffers import assert_same_buffers, clone_args

Args = dict[str, Any]


def tame(op: str, args: Args) -> Args:
    """The arguments, edited in place, without a value that validation reports."""
    _TAME[op](args)
    return args


def is_wild(op: str, args: Args) -> bool:
    """Whether taming would change a value; the arguments stay as they are."""
    tamed = tame(op, clone_args(args))
    try:
        assert_same_buffers(args, tamed)
    except AssertionError:
        return True
    return bool(args.get("num_blocks") != tamed.get("num_blocks"))


def _below(t: Tensor, high: int) -> None:
    """-1 stays; what is outside ``[0, high)`` becomes -1."""
    own = t
    for d in range(t.dim()):
        if t.stride(d) == 0 and t.shape[d] > 1:
            own = own.narrow(d, 0, 1)
    wide = own.long()
    own[(wide < -1) | (wide >= high)] = -1


def _distinct(t: Tensor, high: int, null: int = -1) -> None:
    """Row by row: values of ``[null + 1, high)`` stay where they come first, the rest becomes ``null``."""
    for row in t.view(1, -1) if t.dim() == 1 else t:
        seen: set[int] = set()
        for i, value in enumerate(row.tolist()):
            if not null < value < high or value in seen:
                row[i] = null
            seen.add(value)


def _tame_plan(args: Args) -> None:
    host, hot = args["host_rows"], args["hot_rows"]
    host_total, hot_total = num_rows(args["host_cache"]), num_rows(args["hot_cache"])
    _below(host, host_total)
    _below(hot, hot_total)
    if 0 in host.stride() and host.numel() > 1:
        return  # one host row for many entries: no hot row can take two
    copied = (host >= 0) & (hot >= 0)
    host[copied] = (hot * 7 % max(1, host_total))[copied].to(host.dtype)


def _gather_compact(args: Args) -> None:
    _tame_plan(args)
    args["counts"].clamp_(0, args["host_rows"].shape[1])


def _gather_plan(args: Args) -> None:
    _tame_plan(args)
    mask = args["miss_mask"]
    mask.copy_(mask != 0)
    if args.get("request_state_indices") is not None:
        args["request_state_indices"].clamp_(min=-1)


def _invalidate_written(args: Args) -> None:
    states = args["request_state_indices"]
    _below(args["request_ids"], len(states))
    _distinct(args["slots"], 2**31)
    _below(states, min((len(t) for t in args["owners"]), default=2**31 - 1))
    for owner in args["owners"]:
        _distinct(owner, 2**31)


def _invalidate_recycled(args: Args) -> None:
    _below(args["state_rows"], min((len(t) for t in args["owners"]), default=2**31 - 1))
    slots = args["sorted_slots"]
    _below(slots, 2**31)
    slots.copy_(slots.sort().values)
    for owner in args["owners"]:
        _distinct(owner, 2**31)


def _reset_requests(args: Args) -> None:
    _distinct(args["state_rows"], len(args["hot_owner"]))


def _residency_stats(args: Args) -> None:
    valid, loads, resident = (
        args["valid_counts"],
        args["refill_counts"],
        args.get("resident_counts"),
    )
    # What resolve can count: entries of a row.
    valid.clamp_(0, 2**31 - 1)
    if resident is not None:
        resident.copy_(torch.minimum(resident.clamp(min=0), valid))
    loads.clamp_(min=0)
    answered = int(valid.sum()) - (0 if resident is None else int(resident.sum()))
    if int(loads.sum()) > answered:
        loads.zero_()


def _pad_slots(args: Args) -> None:
    args["valid_count"].clamp_(0, len(args["slots"]))
    _distinct(args["slots"], 2**31)


def _copy_resident_rows(args: Args) -> None:
    _below(args["row_ids"], num_rows(args["source"]))


def _copy_row_spans(args: Args) -> None:
    layers = list(zip(args["sources"], args["destinations"], strict=True))
    source_rows = min((num_rows(s) for s, _ in layers), default=0)
    target_rows = min((num_rows(d) for _, d in layers), default=0)
    written: set[int] = set()
    for span in args["spans"]:
        start, to, rows = span.tolist()
        span[2] = max(0, rows)
        if rows <= 0:
            continue
        inside = 0 <= start <= source_rows - rows and 0 <= to <= target_rows - rows
        if not inside or not written.isdisjoint(range(to, to + rows)):
            span[2] = 0
        else:
            written.update(range(to, to + rows))


def _copy_pages(args: Args) -> None:
    pairs = args["page_pairs"]
    layers = list(zip(args["sources"], args["destinations"], strict=True))
    for column, pages in enumerate(
        (
            min((len(s) for s, _ in layers), default=1),
            min((len(d) for _, d in layers), default=1),
        )
    ):
        _below(pairs[:, column], pages)
    skipped = (pairs <= 0).any(1)
    targets = pairs[:, 1].clone()
    targets[skipped] = 0
    _distinct(targets, 2**31, null=0)
    pairs[:, 1] = torch.where(skipped, pairs[:, 1], targets)


def _publish_indexer_pages(args: Args) -> None:
    read, written = args["source_blocks"], args["logical_blocks"]
    _below(read, len(args["source"]))
    _below(written, len(args["slab"]))
    if args.get("row_counts") is not None:
        args["row_counts"].clamp_(0, args["slab"].shape[1])
    skipped = (read <= 0) | (written <= 0)
    targets = written.clone()
    targets[skipped] = 0
    _distinct(targets, 2**31, null=0)
    written.copy_(torch.where(skipped, written, targets))


def _scatter_rows(args: Args) -> None:
    _distinct(args["slots"], num_rows(args["caches"][0]))


def _scatter_c8(args: Args) -> None:
    _distinct(args["slots"], num_rows(args["cache"]))
    scales = args["scales"]
    scales.copy_(_tame_scales(scales))


def _tame_scales(scales: Tensor) -> Tensor:
    return torch.where(torch.isfinite(scales) & (scales > 0), scales, 1.0)


def _quantize_scatter_c8(args: Args) -> None:
    _distinct(args["slots"], num_rows(args["cache"]))
    for name in ("latent", "rope"):
        if args[name].is_floating_point():
            args[name].nan_to_num_(0.0, 1.0, -1.0)


def _dequantize_c8(args: Args) -> None:
    _below(args["row_ids"], num_rows(args["cache"]))
    start = 640 if args["layout"] == "ascend" else 512
    rows = args["cache"][..., start : start + 16].view(torch.uint8)
    rows.copy_(_tame_scales(rows.clone().view(torch.float32)).view(torch.uint8))


def _resolve(args: Args) -> None:
    """Block tables without repeats, blocks that exist, a top-k that is backed, owners and LRU that are whole."""
    source, hot, resident = (
        args.get(name) for name in ("source_block_table", "hot_block_table", "resident_block_table")
    )
    assert hot is not None
    block_size = args["block_size"]
    source_size = args.get("source_block_size") or block_size
    resident_size = args.get("resident_block_size") or block_size
    requests, states = args["request_ids"], args["request_state_indices"]
    owner, lru = args["hot_owner"], args["lru_slots"]
    count = min(len(t) for t in (states, hot, source) if t is not None)
    _below(requests, count)
    num_states = min(len(owner), len(resident) if resident is not None else len(owner))
    _distinct(states, num_states)

    _tame_hot_blocks(args, hot, owner.shape[1])
    _tame_resident(args, hot, resident, resident_size, states)
    if args.get("stable_lengths") is not None:
        args["stable_lengths"].clamp_(min=0)
    if source is not None:
        last = -(-args["host_rows"] // source_size)
        _distinct(source, last, null=0)
    _distinct(owner, args["host_rows"])
    for row in lru:
        if row.sort().values.tolist() != list(range(len(row))):
            row.copy_(torch.arange(len(row)))
    _tame_topk(args, source, source_size, resident, resident_size)


def _tame_hot_blocks(args: Args, hot: Tensor, hot_size: int) -> None:
    """Every column of every hot buffer has a block of its own; the slab grows where it has too few."""
    needed = -(-hot_size // args["block_size"])
    used = hot[:, :needed]
    blocks = used.flatten().tolist()
    if all(0 < b < args["num_blocks"] for b in blocks) and len(set(blocks)) == len(blocks):
        return
    used.copy_(1 + torch.arange(used.numel()).view(used.shape))
    args["num_blocks"] = max(args["num_blocks"], 1 + used.numel())


def _tame_resident(
    args: Args, hot: Tensor, resident: Tensor | None, resident_size: int, states: Tensor
) -> None:
    if resident is None:
        return
    rows = args["num_blocks"] * args["block_size"]
    _distinct(resident, rows // resident_size, null=0)
    if resident_size == args["block_size"]:
        resident[torch.isin(resident, hot)] = 0


def _tame_topk(
    args: Args,
    source: Tensor | None,
    source_size: int,
    resident: Tensor | None,
    resident_size: int,
) -> None:
    topk, states = args["topk_indices"], args["request_state_indices"].tolist()
    if source is None:
        _below(topk, args["host_rows"])
        return
    rows = args["num_blocks"] * args["block_size"]
    for row, request in zip(topk, args["request_ids"].tolist(), strict=True):
        if request < 0 or states[request] < 0:
            continue
        pages = source[request].tolist()
        here = [] if resident is None else resident[states[request]].tolist()
        for column, position in enumerate(row.tolist()):
            if position < 0:
                row[column] = -1
                continue
            page, offset = divmod(position, source_size)
            host = page < len(pages) and pages[page] > 0
            host = host and pages[page] * source_size + offset < args["host_rows"]
            page, offset = divmod(position, resident_size)
            kept = page < len(here) and here[page] > 0
            kept = kept and here[page] * resident_size + offset < rows
            if not (host or kept):
                row[column] = -1


_TAME: dict[str, Callable[[Args], None]] = {
    "copy_pages": _copy_pages,
    "copy_resident_rows": _copy_resident_rows,
    "copy_row_spans": _copy_row_spans,
    "dequantize_c8": _dequantize_c8,
    "fill_full_visible": lambda args: None,
    "gather_compact": _gather_compact,
    "gather_plan": _gather_plan,
    "invalidate_recycled": _invalidate_recycled,
    "invalidate_written": _invalidate_written,
    "pad_slots": _pad_slots,
    "publish_indexer_pages": _publish_indexer_pages,
    "quantize_scatter_c8": _quantize_scatter_c8,
    "reset_requests": _reset_requests,
    "residency_stats": _residency_stats,
    "resolve": _resolve,
    "scatter_c8": _scatter_c8,
    "scatter_rows": _scatter_rows,
}
