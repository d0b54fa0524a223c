"""Break the kernels one line at a time and see which test notices.

Every mutant is built in a copy of the tree and must fail the tests of its op. Exit status 1 if one survives.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Mutant:
    op: str
    fault: str
    file: str
    old: str
    new: str


MUTANTS = [
    Mutant(
        "resolve",
        "LRU rewrite drops the oldest kept slot",
        "ops/resolver/resolve.cpp",
        "append(others_.data() + victims, num_others_ - victims);",
        "append(others_.data() + victims + 1, num_others_ - victims - 1);",
    ),
    Mutant(
        "resolve",
        "filled slots go behind the hits",
        "ops/resolver/resolve.cpp",
        "  append(others_.data(), victims);\n  append(hits_.data(), num_hits_);",
        "  append(hits_.data(), num_hits_);\n  append(others_.data(), victims);",
    ),
    Mutant(
        "resolve",
        "the null block holds data",
        "ops/resolver/page_rows.h",
        "if (block <= 0 || block > last_block) return -1;",
        "if (block < 0 || block > last_block) return -1;",
    ),
    Mutant(
        "resolve",
        "every row is a run of its own",
        "ops/resolver/resolve_cpu.cpp",
        "while (row < rows && requests(row) == request);",
        "while (false);",
    ),
    Mutant(
        "resolve",
        "a slot that stands twice in the LRU is given twice",
        "ops/resolver/resolve.cpp",
        " || has_bit(bits_.data(), victim)) continue;",
        ") continue;",
    ),
    Mutant(
        "resolve",
        "a corrupted LRU entry is used as a slot",
        "ops/resolver/resolve.cpp",
        "if (victim < 0 || victim >= args.hot_size || ",
        "if (victim < 0 || ",
    ),
    Mutant(
        "resolve",
        "host row is formed in 32 bit",
        "ops/resolver/page_rows.h",
        "int64_t start(int64_t page) const noexcept { return page * rows; }",
        "int64_t start(int64_t page) const noexcept { return int32_t(uint32_t(page) * uint32_t(rows)); }",
    ),
    Mutant(
        "resolve",
        "resident entries count as hits",
        "ops/resolver/resolve.cpp",
        "hit_references_ += valid - resident;",
        "hit_references_ += valid;",
    ),
    Mutant(
        "resolve",
        "a position at the stable length is kept",
        "ops/resolver/resolve.cpp",
        "? stable - pages.start(page) : 0;",
        "? stable + 1 - pages.start(page) : 0;",
    ),
    Mutant(
        "resolve",
        "two runs of one state run side by side",
        "ops/resolver/resolve_cpu.cpp",
        "if (state >= 0 && chains.last[state] >= 0)",
        "if (state < 0 && chains.last[0] >= 0)",
    ),
    Mutant(
        "resolve",
        "prefix layout leaves the tail unwritten",
        "ops/resolver/resolve_steps.cpp",
        "    std::fill(attention + valid, attention + count, -1);",
        "    std::fill(attention + valid + 1, attention + count, -1);",
    ),
    Mutant(
        "resolve",
        "rows of the last run stay in the index",
        "ops/resolver/host_row_index.h",
        "for (int32_t i = 0; i < size_; ++i) numbers_[keys_[i]] = 0;",
        "for (int32_t i = 1; i < size_; ++i) numbers_[keys_[i]] = 0;",
    ),
    Mutant(
        "resolve",
        "a row twice in one vector is entered twice",
        "ops/resolver/host_row_index.h",
        "_mm512_mask_testn_epi32_mask(chosen, earlier, earlier)",
        "chosen",
    ),
    Mutant(
        "resolve",
        "an owner past the host cache is looked up",
        "ops/resolver/host_row_index.h",
        "_mm512_cmplt_epu32_mask(rows, _mm512_set1_epi32(static_cast<int>(rows_)))",
        "_mm512_cmplt_epu32_mask(rows, _mm512_set1_epi32(INT32_MAX))",
    ),
    Mutant(
        "resolve",
        "the first position past the block table is looked up",
        "ops/resolver/page_rows.cpp",
        "_mm512_cmplt_epu32_mask(column, columns)",
        "_mm512_cmple_epu32_mask(column, columns)",
    ),
    Mutant(
        "resolve",
        "a slot owned twice counts as intact",
        "ops/resolver/resolve.cpp",
        "num_hits_ == num_matched_ && owned == num_matched_",
        "num_hits_ == num_matched_",
    ),
    Mutant(
        "reset_requests",
        "the LRU starts at one",
        "ops/resolver/reset_requests.h",
        "int16_t{0}",
        "int16_t{1}",
    ),
    Mutant(
        "pad_slots",
        "a slot past int32 is cut off",
        "ops/transfer/pad_slots.h",
        "static_cast<To>(fits ? slot : -1)",
        "static_cast<To>(slot)",
    ),
    Mutant(
        "copy_resident_rows",
        "a str argument is not given back",
        "ops/common/check.h",
        "  torch_delete_string(handle);\n",
        "",
    ),
    Mutant(
        "gather_compact",
        "a row past the host cache leaves the stale one",
        "ops/gather/refill.h",
        "else if (hot.row_bytes > 0) std::memset(to, 0, static_cast<size_t>(hot.row_bytes));",
        "",
    ),
    Mutant(
        "gather_compact",
        "counts are not clamped to the plan",
        "ops/gather/gather_compact.h",
        "std::clamp<int64_t>(counts(row), 0, refill.host_rows.cols)",
        "std::max<int64_t>(counts(row), 0)",
    ),
    Mutant(
        "gather_compact",
        "row address in 32 bit",
        "ops/common/slab.h",
        "return base + block * block_stride + (r - block * block_rows) * row_stride;",
        "return base + block * block_stride + int32_t(uint32_t((r - block * block_rows) * row_stride));",
    ),
    Mutant(
        "gather_plan",
        "padding rows are copied",
        "ops/gather/gather_plan.h",
        "if (plan.is_padding(row)) continue;",
        "",
    ),
    Mutant(
        "scatter_c8",
        "scales stand where the rope belongs",
        "ops/transfer/c8.h",
        "kC8Ascend = {kC8Latent, kC8Latent + kC8RopeBytes}",
        "kC8Ascend = {kC8Latent + kC8ScaleBytes, kC8Latent}",
    ),
    Mutant(
        "scatter_c8",
        "slot -1 is taken for a row",
        "ops/transfer/scatter_c8.h",
        "if (!cache.contains(slot) || !owns_row(slot, part, parts)) continue;",
        "if (slot >= cache.rows() || !owns_row(slot, part, parts)) continue;",
    ),
    Mutant(
        "quantize_scatter_c8",
        "ties round up instead of to even",
        "ops/transfer/e4m3.h",
        "(clamped + kE4m3Round + (clamped >> 20 & 1)) >> 20",
        "(clamped + kE4m3Round + 1) >> 20",
    ),
    Mutant(
        "quantize_scatter_c8",
        "power-of-two scale is rounded down",
        "ops/transfer/quantize_c8.h",
        "(bits + 0x7FFFFF) & 0x7F800000",
        "bits & 0x7F800000",
    ),
    Mutant(
        "scatter_rows",
        "every cache gets the first rows",
        "ops/transfer/scatter_rows.h",
        "rows[j].row(i)",
        "rows[0].row(i)",
    ),
    Mutant(
        "copy_row_spans",
        "the last row of a span is left out",
        "ops/transfer/copy_row_spans.h",
        "span.rows = std::min({span.rows - before,",
        "span.rows = std::min({span.rows - before - 1,",
    ),
    Mutant(
        "copy_pages",
        "the null page is copied",
        "ops/common/slab.h",
        "return block > 0 && block < blocks;",
        "return block >= 0 && block < blocks;",
    ),
    Mutant(
        "publish_indexer_pages",
        "logical block ids address the source",
        "ops/transfer/publish_indexer_pages.h",
        "const int64_t from = source_blocks(i), to",
        "const int64_t from = logical_blocks(i), to",
    ),
    Mutant(
        "invalidate_written",
        "a row past int32 is compared in 32 bit",
        "ops/invalidate/owner_drop.h",
        "return row >= 0 && row <= INT32_MAX;",
        "return row >= 0;",
    ),
    Mutant(
        "invalidate_written",
        "the state is the request id",
        "ops/invalidate/invalidate_written.h",
        "const int64_t state = states(request);",
        "const int64_t state = request;",
    ),
    Mutant(
        "copy_resident_rows",
        "an invalid id is copied under the rule that keeps",
        "ops/transfer/copy_resident_rows.h",
        "if (!row0) continue;",
        "",
    ),
]


def run(command: list[str], tree: Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(tree / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, check=False)


def build(tree: Path) -> None:
    done = run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], tree)
    if done.returncode:
        raise SystemExit(f"the tree does not build:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def first_failure(tree: Path, op: str) -> str | None:
    """Name of the first test of the op that fails; a crash of the tests counts."""
    tests = ["tests/nightly", "-k", op, "-x", "-q", "-p", "no:cacheprovider"]
    done = run([sys.executable, "-m", "pytest", *tests], tree)
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) \S*?::(.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return failed.group(1) if failed else f"the test process died ({done.returncode})"


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/mutants.py", description=__doc__)
    parser.add_argument("--op", help="mutants of one op (all)")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if options.op in (None, m.op)]
    survivors = 0
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        ignored = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", "*.so")
        shutil.copytree(ROOT, tree, ignore=ignored)
        build(tree)
        for i, mutant in enumerate(chosen, 1):
            path = tree / mutant.file
            original = path.read_text()
            if original.count(mutant.old) != 1:
                raise SystemExit(f"{mutant.file}: not exactly one place reads {mutant.old!r}")
            path.write_text(original.replace(mutant.old, mutant.new))
            build(tree)
            caught = first_failure(tree, mutant.op)
            path.write_text(original)
            survivors += caught is None
            verdict = f"caught by {caught}" if caught else "SURVIVED"
            print(f"[{i}/{len(chosen)}] {mutant.op}: {mutant.fault}: {verdict}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main())
