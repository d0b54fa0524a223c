"""Calls do not leak: what crosses the stable ABI (strings, lists, optionals) is given back."""

from __future__ import annotations

from pathlib import Path

import hisparse_ops
from hisparse_ops.testing import samples

CALLS = 50_000
PAGE = 4096


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def test_calls_leave_no_memory_behind(op: str) -> None:
    """A leaked string of 32 bytes a call would be 1.6 MB."""
    call = hisparse_ops.ops()[op].call
    most = max(samples.samples(op), key=lambda s: sum(v is not None for v in s.args().values()))
    args = most.args()
    for _ in range(2000):
        call(**args)
    before = resident_bytes()
    for _ in range(CALLS):
        call(**args)
    assert resident_bytes() - before < CALLS * 16
