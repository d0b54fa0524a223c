"""Plant faults in the native resolver, one at a time, and see that each is noticed.

Swaps: two neighbouring operands in one of the places of the Ascend 950 sources that list them. A swap is noticed when a
listing, or the definition as it runs on the host, no longer is what it is in the tree as it stands, which
tests/nightly/test_ascend950.py holds against the op's schema.

Faults of the kernel's body: a missing barrier, order taken from atomics, a wrong width and the like.
A fault is noticed when the emulation or a sample says so, or else ThreadSanitizer.

Exit status 1 if one is not noticed.
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

from hisparse_ops.testing import ascend950, emulation

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


@dataclass(frozen=True)
class Fault:
    """One edit of the body."""

    what: str
    old: str
    new: str
    file: str = "ops/resolver/simt/resolve_block.h"


FAULTS = [
    Fault(
        "no barrier between uniting and counting",
        "seen_[i] = 0;\n    barrier();\n  }\n\n  HISPARSE_SIMT void match()",
        "seen_[i] = 0;\n  }\n\n  HISPARSE_SIMT void match()",
    ),
    Fault(
        "no barrier behind a cleared table",
        "scalars_[i] = 0;\n    barrier();",
        "scalars_[i] = 0;",
    ),
    Fault(
        "no barrier between matching and assigning",
        "others_ = o_.hot_size - hits;\n    barrier();",
        "others_ = o_.hot_size - hits;",
    ),
    Fault("no barrier between tiles", "misses_ += total;\n      barrier();", "misses_ += total;"),
    Fault(
        "no barrier inside the prefix sum",
        "    barrier();\n    uint32_t before",
        "    uint32_t before",
    ),
    Fault("one buffer for all prefix sums", "    parity_ ^= 1;", "    parity_ ^= 0;"),
    Fault("a prefix sum of half the width", "thread_ % kWarp, warp", "thread_ % (kWarp / 2), warp"),
    Fault(
        "whoever inserts first is the first reference",
        "        shared_min(values_ + at, value);",
        "        if (there == kEmpty) values_[at] = value;",
    ),
    Fault(
        "hash table overlaps its values by one",
        "l.values = l.keys + l.places;",
        "l.values = l.keys + l.places - 1;",
        "ops/resolver/simt/budget.h",
    ),
    Fault(
        "LRU row and bits share a word",
        "l.seen = l.order + (hot_size + 1) / 2;",
        "l.seen = l.order + hot_size / 2 - 1;",
        "ops/resolver/simt/budget.h",
    ),
    Fault(
        "a victim is taken as it comes",
        "give(entry, place, miss, is_slot(victim) ? victim : kNone)",
        "give(entry, place, miss, victim)",
    ),
    Fault(
        "a victim of a corrupted row is taken as it comes",
        "give(entry, place, miss++, is_slot(victim) ? victim : kNone)",
        "give(entry, place, miss++, victim)",
    ),
    Fault(
        "bits of the match are taken for slots given",
        "seen_[i] = 0;\n    barrier();\n    if (thread_ == 0)",
        "(void)i;\n    barrier();\n    if (thread_ == 0)",
    ),
    Fault(
        "the newest of several slots answers",
        "kHit + static_cast<int32_t>(i));",
        "kHit + static_cast<int32_t>(o_.hot_size - 1 - i));",
    ),
    Fault(
        "two blocks take the runs of one state",
        "if (row_with_state(state, 0, row) < row) return;",
        "",
    ),
    Fault(
        "a page of the tail is dropped from its start",
        "page == first_page ? stable - page * o_.source_page.rows : 0",
        "page == first_page ? 0 : 0",
    ),
    Fault(
        "hits keep the order of threads",
        "o_.hot_size - 1 - before",
        "hits + o_.hot_size - 1 - before - hits / 2",
    ),
]


def first_sign(tree: Path, scratch: Path) -> str | None:
    """Who notices: the compiler, the emulation, a sample, or ThreadSanitizer; None if nobody does."""
    out = Path(tempfile.mkdtemp(dir=scratch))
    try:
        library = emulation.build(tree, out)
    except RuntimeError:
        return "the compiler"
    if said := emulation.run_samples(library):
        return said.strip().splitlines()[-1][:100]
    said = emulation.sanitize(tree, out, "thread", "threads")
    return "ThreadSanitizer" if "ThreadSanitizer: data race" in said else None


def run_body(report: bool = True) -> tuple[int, list[str]]:
    """Number of faults of the body, and those that nothing noticed."""
    unnoticed = []
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        for source in ("ops/resolver/simt", "tests/stubs/simt"):
            shutil.copytree(ROOT / source, tree / source)
        for fault in FAULTS:
            path = tree / fault.file
            original = path.read_text()
            if original.count(fault.old) != 1:
                raise SystemExit(f"{fault.file}: not exactly one place reads {fault.old!r}")
            path.write_text(original.replace(fault.old, fault.new))
            sign = first_sign(tree, Path(scratch))
            path.write_text(original)
            if sign is None:
                unnoticed.append(fault.what)
            if report:
                print(f"{fault.what}: {sign or 'NOT NOTICED'}", flush=True)
    return len(FAULTS), unnoticed


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/device_faults.py", description=__doc__)
    parser.parse_args()
    count, unnoticed = run_body()
    swapped, more = run(PLACES)
    count += swapped
    unnoticed += more
    for what in unnoticed:
        print(f"NOT NOTICED: {what}")
    print(f"{count - len(unnoticed)} of {count} noticed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    raise SystemExit(main())
