"""Faults planted in the linalg that runs on this CPU: the run must notice each one, or it would prove nothing."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hisparse_ops.testing import samples
from tools.device_check import execute

_PAST, _COUNT, _EQUAL = ("cmpi sge", "cmpi sgt"), ("cmpi slt", "cmpi sle"), ("cmpi eq", "cmpi ne")
_STRIDE, _OFFSET, _BACK = ("muli", "addi"), ("addi", "subi"), ("subi", "addi")
_LEAST, _MOST, _MASK = ("minsi", "maxsi"), ("maxsi", "minsi"), ("andi", "ori")
_PAGE, _IN_PAGE, _SHIFT = ("divsi", "remsi"), ("remsi", "divsi"), ("shrsi", "shli")

_PLANTED: dict[str, list[tuple[tuple[str, str], int]]] = {
    "gather_compact": [  # row movers
        *(
            (_COUNT, 1),
            (_PAST, 0),
            (_PAST, 1),
            (_STRIDE, 0),
            (_STRIDE, 1),
            (_OFFSET, 0),
            (_OFFSET, 1),
        ),
        *((_BACK, 1), (_MOST, 0), (_MOST, 1), (_MASK, 0), (_MASK, 1), (_PAGE, 0), (_PAGE, 1)),
    ],
    "copy_row_spans": [  # grouped copies
        *((_COUNT, 0), (_EQUAL, 0), (_STRIDE, 0), (_STRIDE, 1), (_OFFSET, 0), (_OFFSET, 1)),
        *(
            (_LEAST, 0),
            (_LEAST, 1),
            (_MOST, 0),
            (_MOST, 1),
            (_PAGE, 0),
            (_IN_PAGE, 0),
            (_IN_PAGE, 1),
        ),
    ],
    "invalidate_written": [  # owner tables
        *(
            (_PAST, 0),
            (_PAST, 1),
            (_EQUAL, 0),
            (_EQUAL, 1),
            (_STRIDE, 0),
            (_STRIDE, 1),
            (_OFFSET, 0),
        ),
        *(
            (_OFFSET, 1),
            (_LEAST, 0),
            (_LEAST, 1),
            (_MOST, 0),
            (_MASK, 0),
            (_PAGE, 1),
            (_IN_PAGE, 0),
        ),
    ],
    "quantize_scatter_c8": [  # C8
        *(
            (_COUNT, 0),
            (_COUNT, 1),
            (_PAST, 0),
            (_STRIDE, 0),
            (_STRIDE, 1),
            (_OFFSET, 0),
            (_OFFSET, 1),
        ),
        *((_BACK, 0), (_BACK, 1), (_LEAST, 0), (_MOST, 0), (_MOST, 1), (_MASK, 1), (_SHIFT, 0)),
    ],
}
"""By op, one for each family: what an operation becomes, and which of its occurrences."""


@dataclass(frozen=True)
class Fault:
    op: str
    old: str
    new: str
    occurrence: int

    def __str__(self) -> str:
        return f"{self.op}: {self.old} number {self.occurrence} becomes {self.new}"


FAULTS = [
    Fault(op, old, new, occurrence)
    for op, planted in _PLANTED.items()
    for (old, new), occurrence in planted
]


def is_noticed(fault: Fault, specs: list[dict[str, Any]], python: Path, target: str) -> bool:
    """Whether the samples of the op fail, or end the process or never end, with the fault in its kernels."""
    change = [rf"arith\.{fault.old}\b", f"arith.{fault.new}", fault.occurrence]
    with tempfile.TemporaryDirectory() as folder:
        changed = [{**spec, "changes": [change]} for spec in specs]
        built = list(execute.build(python, changed, target, Path(folder)))
        if errors := [b["error"] for b in built if "error" in b]:
            raise RuntimeError(f"{fault} cannot be planted: {errors[0]}")
        command = [sys.executable, "-m", "tools.device_check.execute", fault.op, folder]
        try:
            done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        except subprocess.TimeoutExpired:
            return True
        return done.returncode != 0


def unnoticed(python: Path, target: str, faults: list[Fault]) -> Iterator[tuple[Fault, bool]]:
    """Every fault, and whether it went unnoticed."""
    specs = {
        op: list(execute.wanted(op, list(samples.samples(op))).values())
        for op in {fault.op for fault in faults}
    }
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda f: is_noticed(f, specs[f.op], python, target), faults)
        for fault, noticed in zip(faults, found, strict=True):
            yield fault, not noticed
