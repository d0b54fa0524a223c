"""Triton's interpreter as a backend that vLLM accepts on the CPU.

Model Runner V2 keeps its block tables with Triton kernels, and vLLM on the CPU asks for a Triton with a CPU backend,
which is on no package index. With ``TRITON_INTERPRET=1`` Triton runs kernels in Python and needs no backend at all:
this tells vLLM so.
"""

from __future__ import annotations

import os
from types import SimpleNamespace

# vLLM wants "cpu" by name in a CPU build, and exactly one active driver of another name otherwise.
NAMES = ("cpu", "interpreter")


def offer() -> None:
    """Enter the interpreter among Triton's backends, where Triton is to interpret and has no CPU backend."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    try:
        from triton.backends import backends
    except ImportError:
        return
    active = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True), compiler=None)
    if "cpu" not in backends:
        for name in NAMES:
            backends[name] = active
