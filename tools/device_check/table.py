"""What was seen of each op's kernel, as a table."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

STAGES = (
    "interpreted",
    "cubin",
    "taken by Ascend's compiler",
    "run as Ascend's IR",
    "run on hardware",
)
BEGIN = "<!-- device check: written by python -m tools.device_check --document -->"
END = "<!-- /device check -->"


@dataclass
class Cell:
    """How often something was tried, and what failed."""

    tried: int = 0
    failures: list[str] = field(default_factory=list)
    note: str = ""

    def __str__(self) -> str:
        if not self.tried:
            return "no"
        if self.failures:
            return f"{len(self.failures)} of {self.tried} FAILED"
        return f"{self.tried}{self.note}"


Table = dict[str, dict[str, Cell]]


def empty(ops: Iterable[str]) -> Table:
    """A row an op, nothing tried."""
    return {op: {stage: Cell() for stage in STAGES} for op in ops}


def failures(table: Table) -> list[str]:
    return [
        f"{op}, {stage}: {failure}"
        for op, row in table.items()
        for stage, cell in row.items()
        for failure in cell.failures
    ]


def most_ub(used: Sequence[tuple[str, str, int]]) -> dict[str, int]:
    """Bytes of UB of an op's largest variant, from (op, target, bytes)."""
    most: dict[str, int] = defaultdict(int)
    for op, _, number in used:
        most[op] = max(most[op], number)
    return dict(most)


def markdown(table: Table) -> str:
    lines = [f"| op | {' | '.join(STAGES)} |", "|---|" + "---|" * len(STAGES)]
    for op, row in table.items():
        lines.append(f"| {op} | {' | '.join(str(row[stage]) for stage in STAGES)} |")
    return "\n".join(lines)


def text(table: Table) -> str:
    widths = [max(len(str(row[s])) for row in table.values()) for s in STAGES]
    widths = [max(w, len(s)) for w, s in zip(widths, STAGES, strict=True)]
    first = max(len(op) for op in table)
    head = "  ".join(f"{s:>{w}}" for s, w in zip(STAGES, widths, strict=True))
    lines = [f"{'op':<{first}}  {head}"]
    for op, row in table.items():
        cells = "  ".join(f"{row[s]!s:>{w}}" for s, w in zip(STAGES, widths, strict=True))
        lines.append(f"{op:<{first}}  {cells}")
    return "\n".join(lines)


def document(page: Path, table: Table) -> None:
    """Put the table between the markers of a page."""
    old = page.read_text()
    found = re.search(rf"{re.escape(BEGIN)}\n.*?{re.escape(END)}", old, re.S)
    if found is None:
        raise ValueError(f"{page} must have the lines {BEGIN} and {END}")
    page.write_text(old.replace(found.group(0), f"{BEGIN}\n{markdown(table)}\n{END}"))
