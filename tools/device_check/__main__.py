"""Take every device kernel as far as it goes without a device, and print what was seen.

  interpreted                 samples that Triton's interpreter ran as the op's oracle does, whole buffers compared
  cubin                       specialisations compiled to machine code for sm_90 and sm_100
  taken by Ascend's compiler  specialisations that triton-ascend's front end and the middle end of Ascend's compiler
                              took, for Ascend910B3, 910_9392, 950PR_9589 and 950DT_9581; the most on-chip memory (UB)
  run as Ascend's IR          samples run on this CPU from the IR of that front end, for 910B3 and 950PR_9589
  run on hardware             nothing: no kernel has run on a card yet

Not shown by this: the step from that IR to an object file (CANN's, on no package registry), order between programs and
the memory model of a device, and speed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hisparse_ops import triton
from hisparse_ops.testing import samples
from tools.device_check import execute, faults, table
from tools.device_check.table import STAGES, Table

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "backends.md"
EXECUTED = ("Ascend910B3", "Ascend950PR_9589")
INTERPRETED, CUBIN, TAKEN, EXECUTED_STAGE, _ = STAGES


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.device_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--op", choices=triton.OPS, help="one op (all)")
    parser.add_argument(
        "--tier", choices=["default", "nightly"], default="default", help="samples to run (default)"
    )
    parser.add_argument("--json", type=Path, help="also write what was seen to this file")
    parser.add_argument(
        "--document", action="store_true", help=f"put the table into {PAGE.relative_to(ROOT)}"
    )
    parser.add_argument(
        "--no-seams",
        action="store_true",
        help="leave out the sizes at the seams of grids and blocks (they take four minutes)",
    )
    parser.add_argument(
        "--no-faults", action="store_true", help="do not plant faults (they take two minutes)"
    )
    options = parser.parse_args(argv)
    if options.document and options.op:
        parser.error("--document must go without --op: the page has every op")
    return options


def ascend_python() -> Path:
    """Python of the environment of triton-ascend; it cannot share one with triton."""
    folder = Path(os.environ.get("HISPARSE_ASCEND_ENV", ROOT / ".venv-ascend"))
    python = folder / "bin" / "python"
    if not python.exists():
        raise SystemExit(
            f"device_check: there is no environment of triton-ascend in {folder}: "
            "run `make device-check`, which makes it, or set HISPARSE_ASCEND_ENV"
        )
    return python


def lines_of(command: Sequence[str | Path]) -> Iterator[dict[str, Any]]:
    """JSON lines that a program prints, as they come."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    with subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        yield from (json.loads(line) for line in process.stdout)
    if process.returncode:
        raise SystemExit(f"device_check: {command[1]} stopped with status {process.returncode}")


class Progress:
    """One line that says what is being done, rewritten on a terminal."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def __call__(self, text: str, last: bool = False) -> None:
        seconds = time.monotonic() - self._start
        if sys.stderr.isatty():
            end = "\n" if last else ""
            print(f"\r\x1b[K[{seconds:4.0f} s] {text}", end=end, file=sys.stderr, flush=True)
        elif last:
            print(f"[{seconds:4.0f} s] {text}", file=sys.stderr, flush=True)


def interpret(seen: Table, ops: Sequence[str], tier: str, tell: Progress) -> None:
    command = [sys.executable, ROOT / "tools/device_check/interpret.py", tier, *ops]
    for line in lines_of(command):
        cell = seen[line["op"]][INTERPRETED]
        cell.tried += 1
        if "error" in line:
            cell.failures.append(f"{line['sample']}: {line['error']}")
        tell(f"interpreted {line['op']}")
    tell("interpreted", last=True)


def compile_cubins(seen: Table, ops: Sequence[str], tell: Progress) -> None:
    for line in lines_of([sys.executable, ROOT / "tools/device_check/cubins.py", *ops]):
        cell = seen[line["op"]][CUBIN]
        cell.tried += 1
        if "error" in line:
            cell.failures.append(f"{line['variant']} for {line['target']}: {line['error']}")
        tell(f"cubins of {line['op']}")
    tell("cubins for sm_90 and sm_100", last=True)


def pass_gate(seen: Table, ops: Sequence[str], python: Path, tell: Progress) -> None:
    command = [python, execute.ASCEND, "gate", *(f"--op={op}" for op in ops)]
    used = []
    for line in lines_of(command):
        cell = seen[line["op"]][TAKEN]
        cell.tried += 1
        if "error" in line:
            cell.failures.append(f"{line['variant']} for {line['target']}: {line['error']}")
        else:
            used.append((line["op"], line["target"], line["ub_bytes"]))
        tell(f"Ascend's compiler: {line['op']} for {line['target']}")
    for op, most in table.most_ub(used).items():
        seen[op][TAKEN].note = f", {most / 1024:.1f} KB of UB"
    tell("Ascend's compiler, four targets", last=True)


def check_probes(python: Path, tell: Progress) -> list[str]:
    """Probes that the compiler should have refused and took, or the other way round."""
    wrong, count = [], 0
    for line in lines_of([python, execute.ASCEND, "probes"]):
        count += 1
        refused = "error" in line
        if refused != line["must_be_refused"]:
            verb = "refused" if refused else "took"
            wrong.append(f"probe {line['op']}: the compiler for {line['target']} {verb} it")
    tell(f"{count} probes told apart", last=True)
    return wrong


def run_ir(seen: Table, ops: Sequence[str], tier: str, python: Path, tell: Progress) -> None:
    for target in EXECUTED:
        for op in ops:
            cell = seen[op][EXECUTED_STAGE]
            cases = list(samples.samples(op, tier))
            with tempfile.TemporaryDirectory() as folder:
                specs = list(execute.wanted(op, cases).values())
                for built in execute.build(python, specs, target, Path(folder)):
                    if "error" in built:
                        cell.failures.append(f"{built['key']} for {target}: {built['error']}")
                result = execute.run(op, target, cases, Path(folder))
            cell.tried += len(cases)
            cell.failures += [f"{target}: {failure}" for failure in result.failures]
            tell(f"IR of {op} for {target}")
    tell("Ascend's IR, two targets", last=True)


def plant_faults(ops: Sequence[str], python: Path, tell: Progress) -> list[str]:
    chosen = [fault for fault in faults.FAULTS if fault.op in ops]
    wrong = []
    for number, (fault, missed) in enumerate(faults.unnoticed(python, EXECUTED[0], chosen), 1):
        if missed:
            wrong.append(f"not noticed: {fault}")
        tell(f"fault {number} of {len(chosen)}")
    tell(f"{len(chosen) - len(wrong)} of {len(chosen)} planted faults noticed", last=True)
    return wrong


def check_seams(tell: Progress) -> list[str]:
    """The interpreter at sizes around 1,024 and 65,536, every top-k, and far into memory."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--tier",
        "nightly",
        "tests/nightly/test_triton_sizes.py",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    last = (done.stdout.strip().splitlines() or ["nothing was run"])[-1]
    tell(f"sizes at the seams: {last}", last=True)
    return [f"sizes at the seams: {done.stdout[-800:]}"] if done.returncode else []


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(argv)
    python = ascend_python()
    ops = [options.op] if options.op else list(triton.OPS)
    seen = table.empty(ops)
    tell = Progress()
    steps: list[Callable[[], object]] = [
        lambda: interpret(seen, ops, options.tier, tell),
        lambda: compile_cubins(seen, ops, tell),
        lambda: pass_gate(seen, ops, python, tell),
        lambda: run_ir(seen, ops, options.tier, python, tell),
    ]
    for step in steps:
        step()
    wrong = check_probes(python, tell)
    if not options.no_seams:
        wrong += check_seams(tell)
    if not options.no_faults:
        wrong += plant_faults(ops, python, tell)
    print(table.text(seen))
    wrong = table.failures(seen) + wrong
    for line in wrong:
        print(f"FAILED {line}", file=sys.stderr)
    if options.json:
        rows = {op: {s: vars(cell) for s, cell in row.items()} for op, row in seen.items()}
        options.json.write_text(json.dumps({"ops": rows, "failures": wrong}, indent=1) + "\n")
    if options.document and not wrong:
        table.document(PAGE, seen)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
