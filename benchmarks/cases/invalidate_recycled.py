"""Forgetting the hot copies of host rows that went to another request, in all index groups."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

PAGE = 64


def _case(
    gen: torch.Generator,
    *,
    pages: int,
    groups: int,
    hot_size: int,
    states: int,
    scattered: bool = False,
    host_rows: int = 1_300_000,
) -> dict[str, Any]:
    """``pages`` pages are recycled, or as many single rows anywhere; every state row is searched."""
    start = torch.randperm(host_rows // PAGE, generator=gen)[:pages] * PAGE
    slots = (start[:, None] + torch.arange(PAGE)).flatten()
    if scattered:
        slots = torch.randperm(host_rows, generator=gen)[: pages * PAGE]
    shape = (states, hot_size)
    return {
        "owners": [
            torch.randint(host_rows, shape, dtype=torch.int32, generator=gen) for _ in range(groups)
        ],
        "state_rows": torch.arange(states, dtype=torch.int32),
        "sorted_slots": slots.sort()[0].int(),
    }


_GLM = {"groups": 21, "hot_size": 10240, "states": 128}
_DEEPSEEK = {"groups": 61, "hot_size": 4096, "states": 64}

CASES: dict[str, Callable[[torch.Generator], dict[str, Any]]] = {
    "GLM-5.2/1-page": partial(_case, **_GLM, pages=1),
    "GLM-5.2/128-pages": partial(_case, **_GLM, pages=128),
    "GLM-5.2/8192-scattered": partial(_case, **_GLM, pages=128, scattered=True),
    "DeepSeek-V3.2/128-pages": partial(_case, **_DEEPSEEK, pages=128),
}


def bytes_moved(args: dict[str, Any]) -> int:
    """The owners of every listed state row, read once."""
    rows = len(args["state_rows"].unique())
    return sum(rows * owner.shape[1] * owner.element_size() for owner in args["owners"])
