"""Check and time the CUDA resolver on a card: one command, for whoever has one.

1. Every sample of `resolve` against the CPU op, whole buffers, bit for bit.
2. Every wrong argument: the same words, and nothing touched.
3. A captured step replayed with other contents, against the CPU op.
4. Microseconds a step at top-k 2048: hot buffer 4096 and 10240, batch 1 to 32, MTP 1 and 3, miss rate 0.1, 20, 100 %.

`--device cpu` rehearses all but the capture without a card. Exit status 1 if anything differs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import hisparse_ops
from benchmarks.cases.resolve import TOP_K, step
from hisparse_ops.testing import samples
from hisparse_ops.testing.buffers import assert_same_buffers, clone_args, to_device

RESOLVE = hisparse_ops.ops()["resolve"].call


def check_sample(args: dict[str, Any], device: str) -> None:
    """One call on the device against the CPU op. AssertionError names the first byte that differs."""
    expected, actual = clone_args(args), to_device(args, device)
    RESOLVE(**expected)
    RESOLVE(**actual)
    assert_same_buffers(to_device(actual, "cpu"), expected)


def check_samples(tier: str, device: str) -> Iterator[tuple[str, str]]:
    """(sample, what differs) of those that fail."""
    for sample in samples.samples("resolve", tier):
        try:
            check_sample(sample.args(), device)
        except (AssertionError, RuntimeError, ValueError) as error:
            yield sample.name, str(error)


def check_bad_arguments(device: str) -> Iterator[tuple[str, str]]:
    """(argument, what happened) of those that are not refused in the words of the CPU op."""
    for bad in samples.load("resolve").BAD_ARGUMENTS:
        if bad.name in ON_CPU_ONLY and device != "cpu":
            continue
        args = next(samples.samples("resolve")).args()
        bad.change(args)
        moved = to_device(args, device)
        before = to_device(moved, "cpu")
        try:
            RESOLVE(**moved)
            yield bad.name, "was taken"
        except ValueError as error:
            if str(error) != bad.error:
                yield bad.name, f"says {error}"
        assert_same_buffers(to_device(moved, "cpu"), before)


ON_CPU_ONLY = ("run larger than the limit",)
"""Seen in values, which a launch does not read."""


def check_replay(device: str, steps: int = 8) -> Iterator[tuple[str, str]]:
    """A captured call, replayed with other contents at the same addresses."""
    gen = torch.Generator().manual_seed(7)
    scene = samples.load("resolve").scene
    calls = [
        scene(torch.Generator().manual_seed(7), runs=((0, 4), (2, 4)), hot_size=40)
        for _ in range(steps)
    ]
    for call in calls:
        topk = call["topk_indices"]
        topk.copy_(torch.randint(-1, 48, topk.shape, generator=gen))
    expected, actual = clone_args(calls[0]), to_device(calls[0], device)
    warm = to_device(calls[0], device)
    RESOLVE(**warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        RESOLVE(**actual)
    for i, call in enumerate(calls):
        actual["topk_indices"].copy_(call["topk_indices"])
        expected["topk_indices"].copy_(call["topk_indices"])
        graph.replay()
        RESOLVE(**expected)
        try:
            assert_same_buffers(to_device(actual, "cpu"), expected)
        except AssertionError as error:
            yield f"replay {i}", str(error)


@dataclass(frozen=True)
class Timing:
    """One row of the table."""

    batch: int
    mtp: int
    hot_size: int
    miss_percent: float

    def args(self) -> dict[str, Any]:
        rows = self.mtp + 1
        gen = torch.Generator().manual_seed(1)
        hit_rate = 1 - self.miss_percent / 100
        return step(gen, requests=self.batch, rows=rows, hot_size=self.hot_size, hit_rate=hit_rate)


TIMINGS = [
    Timing(batch, mtp, hot_size, miss)
    for hot_size in (4096, 10240)
    for mtp in (1, 3)
    for batch in (1, 2, 8, 32)
    for miss in (0.1, 20.0, 100.0)
    if (mtp + 1) * TOP_K <= hot_size
]


def microseconds(call: Callable[[], None], restore: Callable[[], None], repeat: int) -> float:
    """Median time on the device of a call on restored state."""
    times = []
    for _ in range(repeat):
        restore()
        if not torch.cuda.is_available():
            start = time.perf_counter()
            call()
            times.append((time.perf_counter() - start) * 1e6)
            continue
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def time_step(timing: Timing, device: str, repeat: int) -> float:
    """The state is put back before every call, so that each one has the misses it is named for."""
    args = to_device(timing.args(), device)
    owner, lru = args["hot_owner"].clone(), args["lru_slots"].clone()

    def restore() -> None:
        args["hot_owner"].copy_(owner)
        args["lru_slots"].copy_(lru)

    call: Callable[[], None] = lambda: RESOLVE(**args)  # noqa: E731
    call()
    if device != "cpu":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            RESOLVE(**args)
        call = graph.replay
    return microseconds(call, restore, repeat)


def report(title: str, failures: Iterator[tuple[str, str]]) -> bool:
    found = list(failures)
    print(f"{title}: {'ok' if not found else f'{len(found)} FAILED'}", flush=True)
    for name, what in found:
        print(f"  {name}: {what}")
    return not found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tools/cuda_resolver_check.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tier", default="nightly", choices=("default", "nightly"))
    parser.add_argument("--repeat", type=int, default=50, help="timed calls a row (50)")
    parser.add_argument("--timings", type=int, default=len(TIMINGS), help="rows timed (all)")
    options = parser.parse_args(argv)
    if options.device == "cuda":
        if not torch.cuda.is_available():
            parser.error("torch sees no CUDA card; --device cpu rehearses without one")
        hisparse_ops.require("resolve", "cuda")
        print(torch.cuda.get_device_name(), hisparse_ops.simt.status("cuda"))
    with torch.inference_mode():
        good = report("samples", check_samples(options.tier, options.device))
        good &= report("wrong arguments", check_bad_arguments(options.device))
        if options.device == "cuda":
            good &= report("graph replay", check_replay(options.device))
        print("  hot  batch  mtp  miss %      us")
        for t in TIMINGS[: options.timings]:
            us = time_step(t, options.device, options.repeat)
            print(f"{t.hot_size:5}  {t.batch:5}  {t.mtp:3}  {t.miss_percent:6}  {us:6.1f}")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
