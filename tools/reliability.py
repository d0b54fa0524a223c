"""Produce the figures of docs/reliability.md: how much was tried, under which conditions, and what was found.

Runs, one after the other: random programs against the model, random faults against the oracles, the kinds of
corrupted input that validation names, fuzzing and the sanitizers. Prints the table; exit status 1 if anything failed.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def drive(seed_and_calls: tuple[int, int]) -> tuple[int, int, int]:
    """One process of the model run."""
    import torch

    from hisparse_ops.testing import model

    torch.set_num_threads(1)
    counts = model.drive(*seed_and_calls)
    return counts.calls, counts.rows_checked, counts.loads


def programs(calls: int, processes: int) -> str:
    """Op calls of random programs, dealt out in pieces with a seed each."""
    piece = 50_000
    work = [(seed, min(piece, calls)) for seed in range(-(-calls // piece))]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        done = pool.map(drive, work, chunksize=1)
    total, rows, loads = (sum(column) for column in zip(*done, strict=True))
    return f"{total:,} op calls in {len(work)} programs; {rows:,} rows compared with the truth, {loads:,} loads"


def pytest(tests: list[str], **env: str) -> str:
    """The last line of a test run; raises what failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stdout[-3000:])
    return done.stdout.strip().splitlines()[-1]


def faults(per_op: int) -> str:
    """Random corruption of any index tensor, whole buffers compared with the oracle."""
    import hisparse_ops as hs

    test = "tests/nightly/test_faults.py"
    said = pytest([test, "--tier", "nightly"], HISPARSE_FAULTS=str(per_op))
    total = per_op * len(hs.ops()) * len(hs.cpu_isas())
    isas = ", ".join(hs.cpu_isas())
    return f"{total:,} corrupted calls ({len(hs.ops())} ops; {isas}); {said}"


def corruptions() -> str:
    """Each kind named with validation on, harmless with it off."""
    from hisparse_ops.testing.corruptions import CORRUPTIONS

    said = pytest(["tests/nightly/test_validation.py", "-k", "corruption or oracle"])
    return f"{len(CORRUPTIONS)} kinds; {said}"


def concurrency() -> str:
    return pytest(["tests/nightly/test_concurrency.py", "--tier", "nightly"])


def sanitizers(what: str, *options: str) -> str:
    command = [sys.executable, "tools/sanitize.py", what, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stdout + done.stderr)[-3000:])
    return re.sub(r"^[^:]+: ", "", done.stdout.strip().splitlines()[-1])


def conditions() -> str:
    import torch

    import hisparse_ops as hs

    model = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    return (
        f"{datetime.date.today()}, {model[1] if model else platform.machine()}, {os.cpu_count()} CPUs, load"
        f" {os.getloadavg()[0]:.1f} at the start; Python {platform.python_version()}, torch {torch.__version__},"
        f" hisparse-ops {hs.__version__}, {'/'.join(hs.cpu_isas())}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/reliability.py", description=__doc__)
    parser.add_argument(
        "--short", action="store_true", help="a hundredth of it, to see that it works"
    )
    options = parser.parse_args()
    share = 100 if options.short else 1
    processes = min(2, os.cpu_count() or 1)
    fuzz_seconds = str(max(10, 240 // share))
    rounds = str(max(50, 5000 // share))
    print(conditions(), flush=True)
    print(
        f"{'short run' if options.short else 'full run'}\n\n| what | tried | seconds |\n|---|---|---|",
        flush=True,
    )
    failed = 0
    for name, work in (
        ("random programs against the model", lambda: programs(10_000_000 // share, processes)),
        ("random faults against the oracles", lambda: faults(1000 // share)),
        ("corrupted inputs, validation on and off", corruptions),
        ("threads, forks, shutdown", concurrency),
        ("fuzzing, ASan and UBSan", lambda: sanitizers("fuzz", "--seconds", fuzz_seconds)),
        ("parallel paths, TSan", lambda: sanitizers("tsan", "--rounds", rounds)),
        ("op suite, ASan and UBSan", lambda: sanitizers("suite")),
    ):
        start = time.monotonic()
        try:
            said = work()
        except RuntimeError as error:
            failed += 1
            said = "FAILED"
            print(error, file=sys.stderr)
        print(f"| {name} | {said} | {time.monotonic() - start:.0f} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
