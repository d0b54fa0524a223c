from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _case(n: int, count: int, dtype: torch.dtype) -> Callable[[torch.Generator], dict[str, Any]]:
    def make(gen: torch.Generator) -> dict[str, Any]:
        return {
            "slots": torch.randint(0, 2**31 - 1, (n,), generator=gen).to(dtype),
            "valid_count": torch.tensor([count], dtype=dtype),
            "out": torch.empty(n, dtype=dtype),
        }

    return make


CASES: dict[str, Callable[[torch.Generator], dict[str, Any]]] = {
    "GLM-5.2/decode-32x4": _case(128, 100, torch.int64),
    "GLM-5.2/prefill-8192": _case(8192, 8000, torch.int32),
    "no work": _case(0, 0, torch.int32),
}


def bytes_moved(args: dict[str, Any]) -> int:
    """Bytes read and bytes written."""
    n = args["slots"].shape[0]
    valid = max(0, min(n, int(args["valid_count"])))
    return valid * args["slots"].element_size() + n * args["out"].element_size()
