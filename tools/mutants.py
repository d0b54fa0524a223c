"""Break the kernels one line at a time and see which test notices.

Every mutant is made in a copy of the tree and must fail the tests of its op: those of the CPU kernels are built first,
those of the device kernels (Triton) are interpreted. Exit status 1 if one survives.
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
TRITON = "python/hisparse_ops/triton/kernels"


@dataclass(frozen=True)
class Mutant:
    op: str
    fault: str
    file: str
    old: str
    new: str

    @property
    def kind(self) -> str:
        return "triton" if self.file.startswith(TRITON) else "cpu"


def _triton(op: str, fault: str, old: str, new: str, file: str | None = None) -> Mutant:
    return Mutant(op, fault, f"{TRITON}/{file or op}.py", old, new)


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
    _triton(
        "gather_compact",
        "one column too many",
        "if column < tl.load(counts + row * counts_stride):",
        "if column <= tl.load(counts + row * counts_stride):",
    ),
    _triton(
        "gather_compact",
        "the largest count is not clamped",
        "tl.max(tl.minimum(count, top_k).to(tl.int32), 0)",
        "tl.max(count.to(tl.int32), 0)",
    ),
    _triton(
        "gather_compact",
        "a row past the host cache is copied",
        "        if host_row < host_count:",
        "        if host_row <= host_count:",
    ),
    _triton(
        "gather_compact",
        "a hot row past the slab is written",
        "(hot_row < hot_count)",
        "(hot_row <= hot_count)",
    ),
    _triton(
        "gather_compact",
        "the column stride of the hot rows is that of the host rows",
        "column * hot_ids_col_stride",
        "column * ids_col_stride",
    ),
    _triton(
        "gather_compact",
        "offsets of pages in 32 bits",
        "tl.cast(block, tl.int64) * block_stride + tl.cast(in_block, tl.int64) * row_stride",
        "(block * block_stride + in_block * row_stride).to(tl.int32)",
        "_rows",
    ),
    _triton(
        "copy_resident_rows",
        "offsets of rows in 32 bits",
        "tl.cast(in_block, tl.int64) * row_stride",
        "(in_block * row_stride).to(tl.int32)",
        "_rows",
    ),
    _triton(
        "copy_resident_rows",
        "the last lanes of a long row are left out",
        "for start in range(0, lanes, BLOCK):\n        at = start + tl.arange(0, BLOCK)\n        inside = at < lanes",
        "for start in range(0, lanes - BLOCK + 1, BLOCK):\n        at = start + tl.arange(0, BLOCK)\n"
        "        inside = at < lanes",
        "_rows",
    ),
    _triton(
        "copy_resident_rows",
        "lanes behind a row are copied too",
        "tl.load(source + at, mask=inside, other=0), mask=inside)",
        "tl.load(source + at, mask=inside, other=0), mask=at <= lanes)",
        "_rows",
    ),
    _triton(
        "copy_resident_rows",
        "an invalid id is copied under the rule that keeps",
        "if ROW0 | inside:",
        "if ROW0 | (row < count):",
    ),
    _triton(
        "copy_resident_rows",
        "an id past the source reads row 1",
        "row = tl.where(inside, row, 0)",
        "row = tl.where(inside, row, 1)",
    ),
    _triton(
        "gather_plan",
        "the mask of the next entry",
        "tl.load(miss_mask + row * mask_row_stride + at * mask_col_stride) != 0",
        "tl.load(miss_mask + row * mask_row_stride + at * mask_col_stride) > 1",
    ),
    _triton(
        "gather_plan",
        "padding rows are copied",
        "        if is_padding == 0:",
        "        if is_padding <= 1:",
    ),
    _triton(
        "gather_plan",
        "padding rows have attention indices",
        "usable = usable & (is_padding == 0)",
        "usable = usable & (is_padding <= 1)",
    ),
    _triton(
        "gather_plan",
        "the attention stride counts a page too much",
        "block * (attention_block_stride - hot_block_rows)",
        "block * attention_block_stride",
    ),
    _triton(
        "gather_plan",
        "columns past the first piece are left out",
        "pieces = (top_k + COLUMNS - 1) // COLUMNS",
        "pieces = tl.minimum((top_k + COLUMNS - 1) // COLUMNS, 1)",
    ),
    _triton("pad_slots", "one slot too many", "keep = at < count", "keep = at <= count"),
    _triton("pad_slots", "a slot past int32 is cut off", "if NARROW:", "if NARROW > 1:"),
    _triton(
        "pad_slots",
        "the stride of the output is that of the slots",
        "at.to(tl.int64) * out_stride",
        "at.to(tl.int64) * slots_stride",
    ),
    _triton("scatter_rows", "padding is written to row 0", "if (slot >= 0) &", "if (slot >= -1) &"),
    _triton(
        "scatter_rows",
        "a slot past the cache is written",
        "(slot < tl.load(item + 4))",
        "(slot <= tl.load(item + 4))",
    ),
    _triton(
        "scatter_rows",
        "every cache gets the first rows",
        "item = table + tl.cast(work % items, tl.int64) * FIELDS",
        "item = table + tl.cast(work % items, tl.int64) * 0",
    ),
    _triton("scatter_c8", "a slot past the cache is written", "(slot < count)", "(slot <= count)"),
    _triton(
        "scatter_c8",
        "half of the rope is written",
        "row + rope_at, BLOCK // 4, BLOCK // 4)",
        "row + rope_at, BLOCK // 8, BLOCK // 4)",
    ),
    _triton(
        "scatter_c8",
        "the scales have the stride of the rope",
        "scales + token * scales_stride",
        "scales + token * rope_stride",
    ),
    _triton(
        "quantize_scatter_c8",
        "ties are rounded up",
        "(clamped + 0x7FFFF + ((clamped >> 20) & 1))",
        "(clamped + 0x80000)",
    ),
    _triton("quantize_scatter_c8", "448 is no code", "0x43E00000)  # 448", "0x43D00000)  # 416"),
    _triton(
        "quantize_scatter_c8",
        "infinities count for the scale",
        "magnitude < 0x7F800000, magnitude, 0",
        "magnitude <= 0x7F800000, magnitude, 0",
    ),
    _triton("quantize_scatter_c8", "the sign is lost", "code | ((bits >> 24) & 0x80)", "code"),
    _triton(
        "quantize_scatter_c8",
        "the power of two is rounded down",
        "(tl.maximum(ratio, least) + 0x7FFFFF) & 0x7F800000",
        "tl.maximum(ratio, least) & 0x7F800000",
    ),
    _triton(
        "quantize_scatter_c8",
        "every tile has the place of the first scale",
        "row + scales_at + tile * 4 + byte",
        "row + scales_at + byte",
    ),
    _triton(
        "dequantize_c8",
        "subnormal codes are half as large",
        "2.0**-9",
        "2.0**-10",
    ),
    _triton("dequantize_c8", "ties are rounded up", "0x7FFF + ((magnitude >> 16) & 1)", "0x8000"),
    _triton(
        "dequantize_c8", "a row outside keeps its rope", "zero_lanes(to_rope, TILE, TILE)", "pass"
    ),
    _triton(
        "dequantize_c8",
        "NaN has a sign",
        "tl.where(is_nan, 0x7FC00000, bits)",
        "tl.where(is_nan, bits | 0x7FC00000, bits)",
    ),
    _triton(
        "invalidate_written",
        "a row past int32 is cut off",
        "fits = (slot >= 0) & (slot <= 0x7FFFFFFF)",
        "fits = slot >= 0",
        "_owners",
    ),
    _triton(
        "invalidate_written",
        "the last token of a chunk is left out",
        "for token in range(first, last):",
        "for token in range(first, last - 1):",
    ),
    _triton(
        "invalidate_written",
        "a request's state is that of the token before",
        "same = following == state",
        "same = following >= -1",
    ),
    _triton(
        "invalidate_written",
        "only the first group",
        "tl.cast(piece // chunks, tl.int64) * FIELDS",
        "tl.cast(piece // chunks, tl.int64) * 0",
    ),
    _triton(
        "invalidate_written",
        "the end of a row is not looked at",
        "for start in range(0, hot_size, TILE):",
        "for start in range(0, hot_size - TILE, TILE):",
    ),
    _triton(
        "invalidate_recycled",
        "a run is taken where one step is larger",
        "== RUN - 1:",
        ">= RUN - 2:",
    ),
    _triton(
        "invalidate_recycled",
        "a run is a row too long",
        "(distance < taken)",
        "(distance <= taken)",
    ),
    _triton(
        "invalidate_recycled",
        "state rows past the table",
        "(state < tl.load(item + 1))",
        "(state <= tl.load(item + 1))",
    ),
    _triton(
        "invalidate_recycled",
        "the stride of the slots is 1",
        "tl.cast(first, tl.int64) * slots_stride",
        "tl.cast(first, tl.int64)",
    ),
    _triton(
        "reset_requests",
        "the LRU starts at one",
        "slot.to(tl.int16)",
        "(slot + 1).to(tl.int16)",
    ),
    _triton("reset_requests", "a state past the table", "(state < states)", "(state <= states)"),
    _triton(
        "residency_stats",
        "the last block is left out",
        "for start in range(0, rows, BLOCK):",
        "for start in range(0, rows - BLOCK + 1, BLOCK):",
    ),
    _triton(
        "residency_stats", "sums in 32 bits", "tl.sum(count.to(tl.int64), 0)", "tl.sum(count, 0)"
    ),
    _triton(
        "fill_full_visible", "the row sees itself", "column < row, column", "column <= row, column"
    ),
    _triton(
        "copy_row_spans",
        "a span before row 0 begins too early",
        "tl.maximum(tl.maximum(-tl.maximum(start, lowest), -tl.maximum(to, lowest)), 0)",
        "tl.maximum(-tl.maximum(start, lowest), 0)",
    ),
    _triton(
        "copy_row_spans",
        "a span goes past the destination",
        "return tl.minimum(rows, tl.minimum(left, to_left))",
        "return tl.minimum(rows, left)",
    ),
    _triton(
        "copy_row_spans",
        "an owner steps over its next rows",
        "k = (chunk + 1) * OWNED - to",
        "k = (chunk + 2) * OWNED - to",
    ),
    _triton("copy_pages", "the null page is copied", "(page >= 1)", "(page >= 0)"),
    _triton(
        "copy_pages",
        "the last row of a page is left out",
        "while row < end:",
        "while row < end - 1:",
    ),
    _triton(
        "publish_indexer_pages",
        "a count past the page is not clamped",
        "rows = tl.minimum(count, page_rows)",
        "rows = count",
    ),
    _triton(
        "publish_indexer_pages",
        "logical block ids address the source",
        "read = source + page * source_page_stride",
        "read = source + to * source_page_stride",
    ),
    _triton(
        "publish_indexer_pages",
        "offsets of pages in 32 bits",
        "write = slab + to * slab_page_stride",
        "write = slab + to.to(tl.int32) * slab_page_stride.to(tl.int32)",
    ),
    _triton(
        "invalidate_written",
        "offsets of state rows in 32 bits",
        "owners += state * tl.load(item + 3)",
        "owners += state.to(tl.int32) * tl.load(item + 3).to(tl.int32)",
    ),
    _triton(
        "invalidate_recycled",
        "offsets of state rows in 32 bits",
        "owners += tl.cast(state, tl.int64) * tl.load(item + 3)",
        "owners += tl.cast(state, tl.int32) * tl.load(item + 3).to(tl.int32)",
    ),
    _triton(
        "reset_requests",
        "offsets of owners in 32 bits",
        "hot_owner + tl.cast(state, tl.int64) * owner_stride",
        "hot_owner + tl.cast(state, tl.int32) * owner_stride.to(tl.int32)",
    ),
    _triton(
        "reset_requests",
        "offsets of the LRU in 32 bits",
        "lru_slots + tl.cast(state, tl.int64) * lru_stride",
        "lru_slots + tl.cast(state, tl.int32) * lru_stride.to(tl.int32)",
    ),
]


def run(command: list[str], tree: Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(tree / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, check=False)


def build(tree: Path) -> None:
    done = run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], tree)
    if done.returncode:
        raise SystemExit(f"the tree does not build:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def first_failure(tree: Path, mutant: Mutant) -> str | None:
    """Name of the first test of the op that fails; a crash of the tests counts."""
    tests = ["tests/nightly", "-k", mutant.op]
    if mutant.kind == "triton":
        tests = ["tests/nightly/test_triton.py", "tests/nightly/test_triton_sizes.py"]
        tests += ["-k", f"{mutant.op} or beyond or every_top_k or shared_out"]
    done = run([sys.executable, "-m", "pytest", *tests, "-x", "-q", "-p", "no:cacheprovider"], tree)
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) \S*?::(.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return failed.group(1) if failed else f"the test process died ({done.returncode})"


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/mutants.py", description=__doc__)
    parser.add_argument("--op", help="mutants of one op (all)")
    parser.add_argument("--kind", choices=["cpu", "triton"], help="mutants of one backend (all)")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if options.op in (None, m.op) and options.kind in (None, m.kind)]
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
            if mutant.kind == "cpu":
                build(tree)
            caught = first_failure(tree, mutant)
            path.write_text(original)
            survivors += caught is None
            verdict = f"caught by {caught}" if caught else "SURVIVED"
            print(f"[{i}/{len(chosen)}] {mutant.op}: {mutant.fault}: {verdict}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main())
