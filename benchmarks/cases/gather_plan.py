"""A follower layer of an index group: replay the leader's plan by its miss mask, with attention indices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

BLOCK_SIZE = 64


def _case(
    gen: torch.Generator,
    *,
    requests: int,
    query_rows: int,
    top_k: int,
    hot_size: int,
    misses: float,
    row_bytes: int,
    layers: int,
    host_rows: int = 400_000,
) -> dict[str, Any]:
    """Every entry has a slot; ``misses`` of them are copied. Pages of ``layers`` layers stand together."""
    rows = requests * query_rows
    slots = torch.stack(
        [torch.randperm(hot_size, generator=gen)[:top_k] for _ in range(rows)]
    )  # [rows, top_k]
    first = torch.arange(requests).repeat_interleave(query_rows)[:, None] * hot_size
    shape = (rows, top_k)
    return {
        "host_cache": torch.randint(256, (host_rows, row_bytes), dtype=torch.uint8, generator=gen),
        "hot_cache": torch.zeros(
            requests * hot_size // BLOCK_SIZE, BLOCK_SIZE, row_bytes, dtype=torch.uint8
        ),
        "host_rows": torch.randint(host_rows, shape, dtype=torch.int32, generator=gen),
        "hot_rows": (first + slots).int(),
        "miss_mask": (torch.rand(shape, generator=gen) < misses).int(),
        "attention_indices": torch.empty(shape, dtype=torch.int32),
        "attention_block_stride": BLOCK_SIZE * layers,
        "request_state_indices": torch.arange(rows, dtype=torch.int32),
    }


_GLM = {"requests": 32, "query_rows": 4, "hot_size": 10240, "layers": 79}
_DEEPSEEK = {"requests": 8, "query_rows": 1, "hot_size": 4096, "layers": 61}
_ROWS = {"top_k": 2048, "row_bytes": 656}

CASES: dict[str, Callable[[torch.Generator], dict[str, Any]]] = {
    "GLM-5.2/no-miss": partial(_case, **_GLM, **_ROWS, misses=0.0),
    "GLM-5.2/0.1%-miss": partial(_case, **_GLM, **_ROWS, misses=0.001),
    "GLM-5.2/10%-miss": partial(_case, **_GLM, **_ROWS, misses=0.1),
    "DeepSeek-V3.2/20%-miss": partial(_case, **_DEEPSEEK, **_ROWS, misses=0.2),
    "DeepSeek-V3.2/batch-1-20%-miss": partial(
        _case, **_DEEPSEEK | {"requests": 1}, **_ROWS, misses=0.2
    ),
}


def bytes_moved(args: dict[str, Any]) -> int:
    """The mask, hot rows and attention indices of every entry; both sides of every row copied."""
    mask, hot_rows = args["miss_mask"], args["hot_rows"]
    entries = mask.nbytes + hot_rows.nbytes + args["attention_indices"].nbytes
    row = 2 * args["hot_cache"].shape[-1] + args["host_rows"].element_size()
    return entries + int(mask.count_nonzero()) * row
