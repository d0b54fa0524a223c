"""Swap operands in the sources of the Ascend 950 resolver, one pair in one place at a time, and see that it is noticed.

A swap is noticed when a listing of operands, or the definition as it runs on the host, no longer is what it is in the
tree as it stands, which tests/nightly/test_ascend950.py holds against the op's schema. Exit status 1 if one is not.
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hisparse_ops.testing import ascend950

ROOT = Path(__file__).parents[1]
SOURCES = ("ops", "tests/stubs/cann", "python/hisparse_ops/simt")


@dataclass(frozen=True)
class Place:
    """Where operands are listed: a part of a file, and how one item of the list reads."""

    name: str
    file: str
    part: str
    item: str
    compiled: bool = False


DEVICE = "ops/resolver/ascend950"
PLACES = [
    Place("inputs", "ops/resolver/simt/slots.h", r"_INPUTS\(X\)(.*?[^\\])\n", r"X\(\w+, \w+\)"),
    Place("outputs", "ops/resolver/simt/slots.h", r"_OUTPUTS\(X\)(.*?[^\\])\n", r"X\(\w+, \w+\)"),
    Place("launcher", "python/hisparse_ops/simt/_launch.py", r"^OPERANDS = \((.*?)^\)", r'"\w+"'),
    Place(
        "definition",
        f"{DEVICE}/op_host/hisparse_resolve_def.cpp",
        r": OpDef\(name\) \{(.*?)this->",
        r"(?:read|update)\([^)]*\);",
        compiled=True,
    ),
    Place(
        "adapter's signature",
        f"{DEVICE}/torch_adapter/resolve_npu.cpp",
        r"^void resolve\((.*?)\) \{",
        r"& \w+",
    ),
    Place(
        "adapter's schema",
        f"{DEVICE}/torch_adapter/resolve_npu.cpp",
        r"m\.def\((.*?)\);",
        r"Tensor(?:\(\w!\))?\?? \w+",
    ),
    Place(
        "adapter's slots",
        f"{DEVICE}/torch_adapter/resolve_npu.cpp",
        r"(Operands operands\(sizes.*?EXEC_NPU_CMD)",
        r"Input::\w+",
    ),
    Place(
        "adapter's call",
        f"{DEVICE}/torch_adapter/resolve_npu.cpp",
        r"EXEC_NPU_CMD\(aclnnHisparseResolve(.*?)\);",
        r"\w+",
    ),
    Place(
        "kernel's signature",
        f"{DEVICE}/op_kernel/hisparse_resolve.cpp",
        r"void hisparse_resolve\((.*?)\) \{",
        r"GM_ADDR \w+",
    ),
    Place(
        "kernel's operands by slot",
        f"{DEVICE}/op_kernel/hisparse_resolve.cpp",
        r"by_slot\[\] = \{(.*?)\}",
        r"\w+",
    ),
]


def swaps(place: Place, text: str) -> Iterator[tuple[str, str]]:
    """(what is swapped, the file's text with it) for every two items of a list that are neighbours."""
    found = re.search(place.part, text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise AssertionError(f"{place.file}: no part reads {place.part}")
    begin = found.start(1)
    items = [(begin + m.start(), begin + m.end()) for m in re.finditer(place.item, found.group(1))]
    for (a, b), (c, d) in pairwise(items):
        swapped = text[:a] + text[c:d] + text[b:c] + text[a:b] + text[d:]
        yield f"{text[a:b]} <-> {text[c:d]}", swapped


def state(tree: Path, scratch: Path, *, compiled: bool) -> object:
    """What the tests compare with the schema; a tree that does not build has no state."""
    listed = ascend950.listings(tree)
    if not compiled:
        return listed
    target = Path(tempfile.mkdtemp(dir=scratch))
    try:
        host = ascend950.build(tree, target)
    except RuntimeError:
        return "does not build"
    return listed, host.definition(), host.infer()


def run(places: list[Place], report: bool = True) -> tuple[int, list[str]]:
    """Number of swaps, and those that nothing noticed."""
    count, unnoticed = 0, []
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        for source in SOURCES:
            ignored = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(ROOT / source, tree / source, ignore=ignored)
        for place in places:
            intact = state(tree, Path(scratch), compiled=place.compiled)
            path = tree / place.file
            original = path.read_text()
            missed, number = [], 0
            for what, text in swaps(place, original):
                number += 1
                path.write_text(text)
                if state(tree, Path(scratch), compiled=place.compiled) == intact:
                    missed.append(f"{place.name}: {what}")
            path.write_text(original)
            count += number
            unnoticed += missed
            if report:
                print(f"{place.name}: {number - len(missed)} of {number} swaps noticed", flush=True)
    return count, unnoticed


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/device_faults.py", description=__doc__)
    parser.parse_args()
    count, unnoticed = run(PLACES)
    for what in unnoticed:
        print(f"NOT NOTICED: {what}")
    print(f"{count - len(unnoticed)} of {count} noticed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    raise SystemExit(main())
