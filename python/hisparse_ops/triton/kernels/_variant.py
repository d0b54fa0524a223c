"""What a kernel can be specialised to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

LANES = {"*i32": 4, "*i16": 2, "*i8": 1}
"""Bytes of the types that rows move as."""

BLOCKS = (64, 256, 1024)
"""Lanes that one step moves; a longer row takes several steps."""


STRIDED = 32
"""Bytes of on-chip memory that an element of a strided list takes on the 910B: a block of its own."""


@dataclass(frozen=True)
class Variant:
    """One specialisation: argument types, constants, and the bytes of on-chip memory (UB) its tiles take."""

    name: str
    kernel: Any
    signature: dict[str, str] = field(hash=False)
    """Type of every argument that is not a constant, in order: "*i32", "*i64", "i32", "i64"."""
    constants: dict[str, int] = field(hash=False)
    ub_bytes: int = 0
    """No compiler for Ascend plans more than this: ``python -m tools.device_check`` holds it to that."""


def signature(types: Mapping[str, str], **pointers: str) -> dict[str, str]:
    """``types`` with pointers of open type filled in: ``lane="*i8"`` is what "*lane" becomes."""
    return {name: pointers.get(t.removeprefix("*"), t) for name, t in types.items()}


def lane_block_ids() -> Iterator[tuple[str, str, int]]:
    """Combinations of lanes, ids and blocks in which each of them comes up."""
    for ids in ("*i32", "*i64"):
        for block in BLOCKS:
            yield "*i32", ids, block
    yield "*i16", "*i32", 256
    yield "*i8", "*i64", 1024


def row_variants(
    stem: str,
    kernel: Any,
    types: Mapping[str, str],
    constants: Mapping[str, int] | None = None,
    other_bytes: int = 0,
) -> tuple[Variant, ...]:
    """Variants of a kernel that moves rows: ``types`` has lanes as "*lane" and ids as "*id".

    Two tiles of a block live at a time, one being read while the other is written; ``other_bytes`` are those of
    tiles of other kinds.
    """
    return tuple(
        Variant(
            f"{stem}-{lane[1:]}-{ids[1:]}-{block}",
            kernel,
            signature(types, lane=lane, id=ids),
            {**(constants or {}), "BLOCK": block},
            2 * block * LANES[lane] + other_bytes,
        )
        for lane, ids, block in lane_block_ids()
    )
