"""Refill of the hot buffer in one layer: a step's misses, packed run by run."""

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
    misses: int,
    row_bytes: int,
    host_rows: int = 400_000,
) -> dict[str, Any]:
    """``misses`` rows a request, each to a slot of its own."""
    rows = requests * query_rows
    plan = torch.full((2, requests, query_rows * top_k), -1, dtype=torch.int32)
    plan[0, :, :misses] = torch.randint(host_rows, (requests, misses), generator=gen)
    for request in range(requests):
        slots = torch.randperm(hot_size, generator=gen)[:misses]
        plan[1, request, :misses] = request * hot_size + slots
    first = torch.arange(query_rows) * top_k
    return {
        "host_cache": torch.randint(256, (host_rows, row_bytes), dtype=torch.uint8, generator=gen),
        "hot_cache": torch.zeros(
            requests * hot_size // BLOCK_SIZE, BLOCK_SIZE, row_bytes, dtype=torch.uint8
        ),
        "host_rows": plan[0].view(rows, top_k),
        "hot_rows": plan[1].view(rows, top_k),
        "counts": (misses - first).clamp(0, top_k).int().repeat(requests),
    }


_GLM = {"requests": 32, "query_rows": 4, "top_k": 2048, "hot_size": 10240, "row_bytes": 656}
_DEEPSEEK = {"requests": 8, "query_rows": 1, "top_k": 2048, "hot_size": 4096, "row_bytes": 656}

CASES: dict[str, Callable[[torch.Generator], dict[str, Any]]] = {
    "GLM-5.2/0.1%-miss": partial(_case, **_GLM, misses=8),
    "GLM-5.2/10%-miss": partial(_case, **_GLM, misses=400),
    "GLM-5.2/cold": partial(_case, **_GLM, misses=4096),
    "DeepSeek-V3.2/20%-miss": partial(_case, **_DEEPSEEK, misses=410),
    "DeepSeek-V3.2/bf16-20%-miss": partial(_case, **_DEEPSEEK | {"row_bytes": 1152}, misses=410),
    "DeepSeek-V3.2/batch-1-20%-miss": partial(_case, **_DEEPSEEK | {"requests": 1}, misses=410),
}


# Plans of one request from 1 to 8192 rows, C8 and BF16.
CASES |= {
    f"plan-{rows}x{row_bytes}B": partial(
        _case,
        requests=1,
        query_rows=-(-rows // 2048),
        top_k=min(rows, 2048),
        hot_size=10240,
        misses=rows,
        row_bytes=row_bytes,
    )
    for row_bytes in (656, 1152)
    for rows in (1, 16, 256, 2048, 8192)
}


def bytes_moved(args: dict[str, Any]) -> int:
    """Both sides of every row copied, and the plan entries read."""
    entries = int(args["counts"].sum())
    return entries * (2 * args["hot_cache"].shape[-1] + 2 * args["host_rows"].element_size())


def entries(args: dict[str, Any]) -> int:
    return int(args["counts"].sum())
