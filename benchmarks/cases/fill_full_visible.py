from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def glm52(gen: torch.Generator) -> dict[str, Any]:
    return {"table": torch.empty(2049, 2048, dtype=torch.int32)}


CASES: dict[str, Callable[[torch.Generator], dict[str, Any]]] = {"glm52": glm52}


def bytes_moved(args: dict[str, Any]) -> int:
    return int(args["table"].nbytes)
