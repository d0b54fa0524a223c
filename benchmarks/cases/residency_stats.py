from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def counts(rows: int) -> Callable[[torch.Generator], dict[str, Any]]:
    def make(gen: torch.Generator) -> dict[str, Any]:
        return {
            "valid_counts": torch.randint(0, 2049, (rows,), dtype=torch.int32, generator=gen),
            "refill_counts": torch.randint(0, 512, (rows,), dtype=torch.int32, generator=gen),
            "stats": torch.zeros(2, dtype=torch.int64),
        }

    return make


CASES: dict[str, Callable[[torch.Generator], dict[str, Any]]] = {
    "glm52-mtp3": counts(128),
    "prefill-8192": counts(8192),
}


def bytes_moved(args: dict[str, Any]) -> int:
    return 2 * args["valid_counts"].nbytes
