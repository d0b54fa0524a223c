"""Decode steps of real models: how many entries hit decides what a step costs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

TOP_K = 2048
BLOCK_SIZE = 64


def step(
    gen: torch.Generator,
    *,
    requests: int,
    rows: int,
    hot_size: int,
    hit_rate: float,
    context: int = 32768,
    resident: bool = False,
    top_k: int = TOP_K,
) -> dict[str, Any]:
    """One step: each row draws ``hit_rate`` of its entries from what the hot buffer holds."""
    pages, hot_blocks = context // BLOCK_SIZE, hot_size // BLOCK_SIZE
    source = 1 + torch.randperm(requests * pages, generator=gen).view(requests, pages)
    owner = torch.empty(requests, hot_size, dtype=torch.int32)
    topk = torch.empty(requests, rows, top_k, dtype=torch.int32)
    for request in range(requests):
        positions = torch.randperm(context, generator=gen)
        held, rest = positions[:hot_size], positions[hot_size:]
        blocks = source[request][held // BLOCK_SIZE]
        owner[request] = (blocks * BLOCK_SIZE + held % BLOCK_SIZE).int()
        hits = round(top_k * hit_rate)
        wanted = torch.cat([held[: 2 * hits], rest[: 2 * (top_k - hits)]])
        for row in range(rows):
            # The rows of one verification share about half of what they pick from the same pool.
            pick = torch.cat(
                [
                    wanted[: 2 * hits][torch.randperm(2 * hits, generator=gen)[:hits]],
                    wanted[2 * hits :][
                        torch.randperm(2 * (top_k - hits), generator=gen)[: top_k - hits]
                    ],
                ]
            )
            topk[request, row] = pick[torch.randperm(top_k, generator=gen)].int()
    batch = requests * rows
    output = partial(torch.empty, (batch, top_k), dtype=torch.int32)
    count = partial(torch.empty, (batch,), dtype=torch.int32)
    resident_blocks = 1 + requests * hot_blocks + torch.arange(requests * pages)
    return {
        "topk_indices": topk.view(batch, top_k),
        "request_ids": torch.arange(requests, dtype=torch.int32).repeat_interleave(rows),
        "request_state_indices": torch.randperm(requests, generator=gen).int().sort()[0],
        "source_block_table": source.int(),
        "hot_block_table": 1 + torch.arange(requests * hot_blocks).view(requests, -1).int(),
        "hot_owner": owner,
        "lru_slots": torch.stack(
            [torch.randperm(hot_size, generator=gen).short() for _ in range(requests)]
        ),
        "attention_indices": output(),
        "valid_counts": count(),
        "refill_host_rows": output(),
        "refill_hot_rows": output(),
        "refill_counts": count(),
        "host_rows": (1 + requests * pages) * BLOCK_SIZE,
        "num_blocks": 1 + requests * (hot_blocks + pages),
        "block_size": BLOCK_SIZE,
        "layout": "prefix",
        "max_union_rows": min(hot_size, rows * top_k),
        "resident_block_table": resident_blocks.view(requests, -1).int() if resident else None,
    }


GLM = {"requests": 32, "rows": 4, "hot_size": 10240}
CASES: dict[str, Callable[[torch.Generator], dict[str, Any]]] = {
    "glm52-mtp3": partial(step, **GLM, hit_rate=0.93),  # type: ignore[arg-type]
    "glm52-mtp3-all-hits": partial(step, **GLM, hit_rate=1.0),  # type: ignore[arg-type]
    "glm52-mtp3-cold": partial(step, **GLM, hit_rate=0.0),  # type: ignore[arg-type]
    "glm52-mtp3-resident": partial(step, **GLM, hit_rate=0.93, resident=True),  # type: ignore[arg-type]
    "deepseek-v32-decode": partial(step, requests=32, rows=1, hot_size=4096, hit_rate=0.8),
    "deepseek-v32-one-request": partial(step, requests=1, rows=1, hot_size=4096, hit_rate=0.8),
}


def bytes_moved(args: dict[str, Any]) -> int:
    """Indices in, indices and counts out, owner and LRU of every request read and written once."""
    rows, top_k = args["topk_indices"].shape
    states, hot_size = args["hot_owner"].shape
    return rows * top_k * 8 + rows * 12 + states * hot_size * 6 * 2


def entries(args: dict[str, Any]) -> int:
    return int(args["topk_indices"].numel())
