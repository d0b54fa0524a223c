"""Value checks of the gather ops."""

from __future__ import annotations

import torch
from torch import Tensor

from hisparse_ops.checks import num_rows
from hisparse_ops.validation._values import Values, on_host, validates


def _check_plan(
    check: Values, host: Tensor, hot: Tensor, where: Tensor, host_total: int, hot_total: int
) -> None:
    """Entries to copy: -1 or a row of either cache; one hot row takes one host row.

    A host row past the host cache would zero the hot row. One hot row planned for two host rows means that two
    requests, or two slots of one, share it.
    """
    check.within(
        "host_rows", host, -1, host_total, f"-1 or a row of host_cache, below {host_total}", where
    )
    check.within(
        "hot_rows", hot, -1, hot_total, f"-1 or a row of hot_cache, below {hot_total}", where
    )
    copied = where & (host >= 0) & (hot >= 0)
    places = copied.flatten().nonzero()[:, 0]
    order = torch.sort(hot.flatten()[places], stable=True)
    by_target = places[order.indices]
    source = host.flatten()[by_target]
    clash = (order.values[1:] == order.values[:-1]) & (source[1:] != source[:-1])
    if bool(clash.any()):
        at = int(by_target[1:][clash].min())
        row, column = divmod(at, hot.shape[1])
        rule = "take one host row only"
        value = f"{int(hot[row, column])} for another host row"
        check.fail("hot_rows", (row, column), rule, value)


@validates("gather_compact")
def _gather_compact(
    host_cache: Tensor, hot_cache: Tensor, host_rows: Tensor, hot_rows: Tensor, counts: Tensor
) -> None:
    """Entries past their count are old and never looked at."""
    check = Values("gather_compact")
    planned, width = on_host(counts), host_rows.shape[1]
    check.within("counts", planned, 0, width + 1, f"between 0 and top_k = {width}")
    where = torch.arange(width) < planned[:, None]
    totals = num_rows(host_cache), num_rows(hot_cache)
    _check_plan(check, on_host(host_rows), on_host(hot_rows), where, *totals)


@validates("gather_plan")
def _gather_plan(
    host_cache: Tensor,
    hot_cache: Tensor,
    host_rows: Tensor,
    hot_rows: Tensor,
    miss_mask: Tensor,
    *,
    attention_indices: Tensor | None = None,
    attention_block_stride: int = 0,
    request_state_indices: Tensor | None = None,
) -> None:
    """Padding rows are never looked at; the mask is resolve's, 0 or 1: anything else was never written."""
    check = Values("gather_plan")
    host, hot, mask = on_host(host_rows), on_host(hot_rows), on_host(miss_mask)
    live = torch.ones(len(host), dtype=torch.bool)
    if request_state_indices is not None:
        states = on_host(request_state_indices)
        check.reject("request_state_indices", states, states < -1, "be -1 (padding) or a state row")
        live = states >= 0
    where = live[:, None].expand_as(mask)
    check.within("miss_mask", mask, 0, 2, "0 or 1", where)
    total = num_rows(hot_cache)
    if attention_indices is not None:  # made from every entry, copied or not
        check.within("hot_rows", hot, -1, total, f"-1 or a row of hot_cache, below {total}", where)
    _check_plan(check, host, hot, where & (mask != 0), num_rows(host_cache), total)
