"""Time ops on named cases, beside the time to copy as many bytes with one memcpy.

Every repeat starts from the same arguments: what a call wrote is put back, outside the timed part.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import hisparse_ops
from hisparse_ops.testing.buffers import clone_args, tensors

Case = Callable[[torch.Generator], dict[str, Any]]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--op", choices=list(hisparse_ops.ops()), help="one op (all of them)")
    parser.add_argument("--case", help="one case of the op (all of them)")
    parser.add_argument("--repeats", type=int, default=20, help="timed calls a case (20)")
    parser.add_argument("--threads", type=int, help="threads (all)")
    return parser.parse_args()


def cases(op: str | None, case: str | None) -> Iterator[tuple[str, str, Case, Callable[..., int]]]:
    for name in hisparse_ops.ops():
        if op not in (None, name):
            continue
        module = importlib.import_module(f"benchmarks.cases.{name}")
        for title, make in module.CASES.items():
            if case in (None, title):
                yield name, title, make, module.bytes_moved


def seconds(call: Callable[[], Any], before: Callable[[], Any], repeats: int) -> torch.Tensor:
    times = []
    for repeat in range(repeats + 2):
        before()
        start = time.perf_counter()
        call()
        if repeat >= 2:  # the first calls grow scratch buffers and wake threads
            times.append(time.perf_counter() - start)
    return torch.tensor(times, dtype=torch.float64).sort()[0]


def time_op(op: str, args: dict[str, Any], repeats: int) -> torch.Tensor:
    call = hisparse_ops.ops()[op].call
    pristine = dict(tensors(clone_args(args)))
    mutates = hisparse_ops.ops()[op].mutates
    written = [(t, pristine[n]) for n, t in tensors(args) if n.split("[")[0] in mutates]

    def restore() -> None:
        for t, original in written:
            t.copy_(original)

    return seconds(lambda: call(**args), restore, repeats)


def time_memcpy(moved: int, repeats: int) -> torch.Tensor:
    source = torch.zeros(max(1, moved // 2), dtype=torch.uint8)
    target = torch.empty_like(source)
    return seconds(lambda: target.copy_(source), lambda: None, repeats)


def main() -> int:
    options = parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    chosen = list(cases(options.op, options.case))
    if not chosen:
        print("benchmarks: no such case; see benchmarks/cases")
        return 2
    print(f"torch {torch.__version__}, {hisparse_ops.cpu_isa()}, {torch.get_num_threads()} threads")
    print(
        f"{'op':<24}{'case':<28}{'p20 us':>10}{'p50 us':>10}{'p80 us':>10}{'GB/s':>8}{'x memcpy':>10}"
    )
    for op, title, make, bytes_moved in chosen:
        args = make(torch.Generator().manual_seed(0))
        moved = bytes_moved(args)
        times = time_op(op, args, options.repeats)
        p20, p50, p80 = (float(times.quantile(q)) for q in (0.2, 0.5, 0.8))
        copy = float(time_memcpy(moved, options.repeats).quantile(0.5))
        line = "".join(f"{t * 1e6:>10.1f}" for t in (p20, p50, p80))
        print(f"{op:<24}{title:<28}{line}{moved / p50 / 1e9:>8.1f}{p50 / copy:>10.2f}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
