"""Oracles: one module an op, plain Python written from the contract without reading a kernel.

An oracle takes the arguments of its op by name and writes them in place. Slow and readable; nothing dispatches here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable


def load(op: str) -> Callable[..., None]:
    """The oracle of an op: the function of the same name in the module of the same name."""
    function: Callable[..., None] = getattr(
        importlib.import_module(f"hisparse_ops.reference.{op}"), op
    )
    return function
