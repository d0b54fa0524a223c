"""Forgetting the hot copies of the rows that a step writes, in all index groups."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

PAGE = 64


def _case(
    gen: torch.Generator,
    *,
    requests: int,
    tokens: int,
    groups: int,
    hot_size: int,
    states: int,
    scattered: bool = False,
    host_rows: int = 1_300_000,
) -> dict[str, Any]:
    """Each request writes ``tokens`` rows: one after another in pages of its own, or anywhere."""
    pages = -(-tokens // PAGE)
    start = torch.randperm(host_rows // PAGE, generator=gen)[: requests * pages] * PAGE
    slots = (start[:, None] + torch.arange(PAGE)).view(requests, -1)[:, :tokens]
    if scattered:
        slots = torch.randperm(host_rows, generator=gen)[: requests * tokens].view(requests, tokens)
    shape = (states, hot_size)
    return {
        "owners": [
            torch.randint(host_rows, shape, dtype=torch.int32, generator=gen) for _ in range(groups)
        ],
        "request_state_indices": torch.randperm(states, generator=gen)[:requests].int(),
        "request_ids": torch.arange(requests, dtype=torch.int32).repeat_interleave(tokens),
        "slots": slots.flatten(),
    }


_GLM = {"groups": 21, "hot_size": 10240, "states": 128}
_DEEPSEEK = {"groups": 61, "hot_size": 4096, "states": 64}

CASES: dict[str, Callable[[torch.Generator], dict[str, Any]]] = {
    "GLM-5.2/decode": partial(_case, **_GLM, requests=32, tokens=4),
    "GLM-5.2/prefill-8192": partial(_case, **_GLM, requests=1, tokens=8192),
    "GLM-5.2/8192-of-128-requests": partial(_case, **_GLM, requests=128, tokens=64),
    "GLM-5.2/8192-scattered": partial(_case, **_GLM, requests=128, tokens=64, scattered=True),
    "DeepSeek-V3.2/decode": partial(_case, **_DEEPSEEK, requests=8, tokens=1),
}


def bytes_moved(args: dict[str, Any]) -> int:
    """The owners of every state row with a written slot, read once."""
    states = args["request_state_indices"][args["request_ids"].unique()].unique()
    return sum(len(states) * owner.shape[1] * owner.element_size() for owner in args["owners"])
