"""Time the ops beside what a user would use instead and beside what the machine allows, in one run.

Three modes. The default times chosen cases; "table" prints the ratios that the project promises and fails where one
is missed; "scaling" shows how cost grows with threads, requests, top-k, hot size, context and hit rate.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import hisparse_ops
from benchmarks.bare import bare_call
from benchmarks.measure import Args, Contender, Evictor, Times, measure, on_copy, wrong_results

Case = Callable[[torch.Generator], Args]


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "mode",
        nargs="?",
        default="cases",
        choices=["cases", "table", "scaling"],
        help="what to run (cases)",
    )
    parser.add_argument("--op", choices=list(hisparse_ops.ops()), help="one op (all of them)")
    parser.add_argument("--case", help="one case of the op (all of them)")
    parser.add_argument(
        "--baselines",
        choices=["all", "none"],
        default="all",
        help="time what stands beside an op (all), or the op alone (none)",
    )
    parser.add_argument(
        "--refcheck", action="store_true", help="hold every result against the oracle"
    )
    parser.add_argument(
        "--cold", action="store_true", help="empty the caches before every timed call"
    )
    parser.add_argument(
        "--repeats", type=int, default=30, help="timed calls of each contender (30)"
    )
    parser.add_argument("--threads", type=int, help="threads (all)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--csv", type=Path, help="also write the figures to this file")
    parser.add_argument("--plot", type=Path, help="also draw them to this PNG file")
    options = parser.parse_args(argv)
    for name in ("repeats", "threads"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name} must be at least 1, got {value}")
    return options


def conditions() -> dict[str, Any]:
    """What the figures depend on."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    here = Path(__file__).parent
    commit = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False).stdout
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "isa": hisparse_ops.cpu_isa(),
        "torch": torch.__version__,
        "commit": commit.strip() or "unknown",
        "load": round(os.getloadavg()[0], 2),
    }


def chosen_cases(op: str | None, case: str | None) -> Iterator[tuple[str, str, Case]]:
    for name in hisparse_ops.ops():
        if op not in (None, name):
            continue
        for title, make in cases_of(name).CASES.items():
            if case in (None, title):
                yield name, title, make


def cases_of(op: str) -> Any:
    return importlib.import_module(f"benchmarks.cases.{op}")


def make_args(make: Case) -> Args:
    return make(torch.Generator().manual_seed(0))


def contenders(op: str, args: Args, baselines: bool = True) -> list[Contender]:
    """Our op first, then what stands beside it."""
    ours = on_copy(op, "hisparse", args, hisparse_ops.ops()[op].call)
    if not baselines:
        return [ours]
    try:
        beside = importlib.import_module(f"benchmarks.baselines.{op}").contenders(args)
    except ModuleNotFoundError as error:
        if error.name != f"benchmarks.baselines.{op}":
            raise
        beside = []
    return [ours, *beside, bare_call(op, args)]


def figures(op: str, case: str, args: Args, times: Sequence[Times]) -> list[dict[str, Any]]:
    """A row for every contender."""
    moved = cases_of(op).bytes_moved(args)
    entries = cases_of(op).entries(args) if hasattr(cases_of(op), "entries") else None
    ours = times[0].median
    return [
        {
            "op": op,
            "case": case,
            "contender": t.name,
            "limit": t.is_limit,
            "p20_us": t.at(0.2) * 1e6,
            "p50_us": t.median * 1e6,
            "p80_us": t.at(0.8) * 1e6,
            "gb_s": moved / t.median / 1e9,
            "ns_per_entry": t.median / entries * 1e9 if entries else None,
            "x_hisparse": t.median / ours,
        }
        for t in times
    ]


def show(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        per_entry = f"{row['ns_per_entry']:.2f}" if row["ns_per_entry"] else ""
        name = row["contender"] + (" (limit)" if row["limit"] else "")
        print(
            f"{row['op']:<22}{row['case']:<34}{name:<30}{row['p20_us']:>11.1f}{row['p50_us']:>11.1f}"
            f"{row['p80_us']:>11.1f}{row['gb_s']:>8.1f}{per_entry:>10}{row['x_hisparse']:>9.2f}x",
            flush=True,
        )


def run_cases(options: argparse.Namespace) -> int:
    chosen = list(chosen_cases(options.op, options.case))
    if not chosen:
        names = ", ".join(title for _, title, _ in chosen_cases(options.op, None))
        print(f"benchmarks: --case must be one of {names}, got {options.case}", file=sys.stderr)
        return 2
    print(
        f"{'op':<22}{'case':<34}{'contender':<30}{'p20 us':>11}{'p50 us':>11}{'p80 us':>11}"
        f"{'GB/s':>8}{'ns/entry':>10}{'time':>10}"
    )
    evict = Evictor() if options.cold else None
    rows: list[dict[str, Any]] = []
    wrong = 0
    for op, title, make in chosen:
        args = make_args(make)
        all_of_them = contenders(op, args, options.baselines == "all")
        if options.refcheck:
            differs = wrong_results(op, args, all_of_them)
            wrong += len(differs)
            for name in differs:
                print(f"{op} {title}: {name} differs from the oracle", file=sys.stderr)
        mine = figures(op, title, args, measure(all_of_them, options.repeats, evict))
        show(mine)
        rows += mine
    save(options, rows)
    return 1 if wrong else 0


def save(options: argparse.Namespace, rows: Sequence[dict[str, Any]]) -> None:
    """The figures as files, where asked for."""
    if options.json:
        text = json.dumps({"conditions": conditions(), "figures": list(rows)}, indent=1)
        options.json.write_text(text + "\n")
    if options.csv and rows:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    if options.plot:
        from benchmarks.plots import draw_ratios

        draw_ratios(options.plot, rows)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(argv)
    if options.threads:
        torch.set_num_threads(options.threads)
    print(", ".join(f"{name} {value}" for name, value in conditions().items()))
    if options.mode == "table":
        from benchmarks.table import run_table

        return run_table(options)
    if options.mode == "scaling":
        from benchmarks.scaling import run_scaling

        return run_scaling(options)
    return run_cases(options)


if __name__ == "__main__":
    raise SystemExit(main())
