from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def glm52(gen: torch.Generator) -> dict[str, Any]:
    """All 32 state rows of one index group."""
    return {
        "hot_owner": torch.zeros(32, 10240, dtype=torch.int32),
        "lru_slots": torch.zeros(32, 10240, dtype=torch.int16),
        "state_rows": torch.randperm(32, generator=gen),
    }


CASES: dict[str, Callable[[torch.Generator], dict[str, Any]]] = {"glm52": glm52}


def bytes_moved(args: dict[str, Any]) -> int:
    return len(args["state_rows"]) * args["hot_owner"].shape[1] * 6
