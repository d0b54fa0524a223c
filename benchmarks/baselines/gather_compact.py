from __future__ import annotations

from typing import Any

from torch import Tensor

from benchmarks.baselines._rows import flat, row_copy_limits, selected
from benchmarks.measure import Contender, on_copy
from hisparse_ops.testing.buffers import clone_args


def with_torch(
    host_cache: Tensor, hot_cache: Tensor, host_rows: Tensor, hot_rows: Tensor, counts: Tensor
) -> None:
    used = selected(counts, host_rows.shape[1])
    taken = flat(host_cache).index_select(0, host_rows[used])
    flat(hot_cache).index_copy_(0, hot_rows[used].long(), taken)


def contenders(args: dict[str, Any]) -> list[Contender]:
    used = selected(args["counts"], args["host_rows"].shape[1])
    mine = clone_args(args)
    return [
        on_copy("gather_compact", "torch", args, with_torch),
        *row_copy_limits(
            mine["host_cache"], mine["host_rows"][used], mine["hot_cache"], mine["hot_rows"][used]
        ),
    ]
