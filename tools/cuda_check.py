"""Check and time the Triton kernels on a card: one command, for whoever has one. The resolver has its own script.

1. Every sample of every op against the CPU op, whole buffers, bit for bit; the gather ops also with the host cache in
   pinned memory.
2. Every wrong argument: the same words, and nothing touched.
3. Every op captured in a CUDA graph and replayed with other contents at the same addresses.
4. gather_compact and copy_resident_rows beside torch's index ops and beside a plain copy of as many bytes on the card.

``--device cpu`` rehearses 1 and 2 with Triton's interpreter, without a card. Exit status 1 if anything differs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

import hisparse_ops
from hisparse_ops import triton
from hisparse_ops.testing import samples
from hisparse_ops.testing.buffers import assert_same_buffers, clone_args, tensors, to_device
from hisparse_ops.testing.samples import Sample

Args = dict[str, Any]
Failures = Iterator[tuple[str, str]]

TIMED = {
    "gather_compact": ("GLM-5.2/10%-miss", "GLM-5.2/cold", "DeepSeek-V3.2/bf16-20%-miss"),
    "copy_resident_rows": ("GLM-5.2/prefill-staging-16384", "DeepSeek-V3.2/bf16-1152B-8192-rows"),
}


def run(op: str, args: Args, device: str) -> None:
    """The op on the device; on the CPU its kernel, interpreted."""
    if device != "cpu":
        hisparse_ops.ops()[op].call(**args)
        return
    from hisparse_ops.testing import interpreter

    interpreter.call(op, args)


def compare(op: str, args: Args, expected: Args) -> None:
    """What a call left on the device against what the CPU op left."""
    assert_same_buffers(to_device(args, "cpu"), expected, samples.device_masks(op, expected))


def check_sample(op: str, sample: Sample, device: str, pinned: bool = False) -> None:
    args = sample.args()
    expected, moved = clone_args(args), to_device(args, device)
    if pinned:
        moved["host_cache"] = in_pinned_memory(args["host_cache"])
    hisparse_ops.ops()[op].call(**expected)
    run(op, moved, device)
    compare(op, moved, expected)


def in_pinned_memory(t: Tensor) -> Tensor:
    raw = torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage()).pin_memory()
    empty = torch.empty(0, dtype=t.dtype)
    return empty.set_(raw.untyped_storage(), t.storage_offset(), t.shape, t.stride())


def check_samples(tier: str, device: str) -> Failures:
    for op in triton.OPS:
        for sample in samples.samples(op, tier):
            places = [False, True] if device != "cpu" and op.startswith("gather") else [False]
            for pinned in places:
                try:
                    check_sample(op, sample, device, pinned)
                except (AssertionError, RuntimeError, ValueError) as error:
                    yield f"{op}, {sample.name}{', pinned' if pinned else ''}", str(error)


def check_bad_arguments(device: str) -> Failures:
    for op in triton.OPS:
        for bad in samples.load(op).BAD_ARGUMENTS:
            if bad.by_value:
                continue
            args = next(samples.samples(op)).args()
            bad.change(args)
            moved = to_device(args, device)
            before = to_device(moved, "cpu")
            try:
                run(op, moved, device)
                yield f"{op}, {bad.name}", "was taken"
            except ValueError as error:
                if str(error) != bad.error:
                    yield f"{op}, {bad.name}", f"says {error}"
            try:
                assert_same_buffers(to_device(moved, "cpu"), before)
            except AssertionError as error:
                yield f"{op}, {bad.name}", f"touched {error}"


def other_contents(sample: Sample, seed: int) -> Args:
    """The sample's arguments from another seed: the same shapes, other values."""
    return sample.make(torch.Generator().manual_seed(seed))


def refill(args: Args, contents: Args) -> bool:
    """Put other contents into the buffers of a call; False if the shapes differ."""
    pairs = list(zip(tensors(args), tensors(contents), strict=True))
    if any(a.shape != b.shape or a.stride() != b.stride() for (_, a), (_, b) in pairs):
        return False
    for (_, a), (_, b) in pairs:
        whole = torch.empty(0, dtype=torch.uint8, device=a.device).set_(a.untyped_storage())
        whole.copy_(torch.empty(0, dtype=torch.uint8).set_(b.untyped_storage()))
    return True


def check_replay(tier: str, replays: int = 3) -> Failures:
    """Every op captured once and replayed; what it reads and writes changes in place between replays."""
    for op in triton.OPS:
        for sample in samples.samples(op, tier):
            moved = to_device(sample.args(), "cuda")
            run(op, moved, "cuda")  # compiles, and copies lists of tensors to the device
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run(op, moved, "cuda")
            for seed in range(replays):
                expected = other_contents(sample, seed)
                if not refill(moved, expected):
                    break
                graph.replay()
                hisparse_ops.ops()[op].call(**expected)
                try:
                    compare(op, moved, expected)
                except AssertionError as error:
                    yield f"{op}, {sample.name}, replay {seed}", str(error)


def microseconds(call: Callable[[], object], repeat: int) -> float:
    """Median time on the card of a call."""
    times = []
    for _ in range(repeat + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times[3:])


def time_cases(repeat: int) -> Iterator[dict[str, Any]]:
    for op, titles in TIMED.items():
        cases = importlib.import_module(f"benchmarks.cases.{op}")
        baseline = importlib.import_module(f"benchmarks.baselines.{op}").with_torch
        for title in titles:
            args = cases.CASES[title](torch.Generator().manual_seed(0))
            moved = to_device(args, "cuda")
            size = cases.bytes_moved(args)
            source = torch.empty(size // 2, dtype=torch.uint8, device="cuda")
            target = torch.empty_like(source)
            call = hisparse_ops.ops()[op].call
            row = {
                "op": op,
                "case": title,
                "us": microseconds(lambda c=call, m=moved: c(**m), repeat),
                "torch_us": microseconds(lambda b=baseline, m=moved: b(**m), repeat),
                "copy_us": microseconds(lambda s=source, t=target: t.copy_(s), repeat),
            }
            if op.startswith("gather"):
                pinned = {**moved, "host_cache": in_pinned_memory(args["host_cache"])}
                row["pinned_us"] = microseconds(lambda c=call, p=pinned: c(**p), repeat)
            yield {**row, "gb_s": size / row["us"] / 1e3}


def show(rows: Sequence[dict[str, Any]]) -> None:
    print(f"{'op':<20}{'case':<38}{'us':>9}{'GB/s':>9}{'x torch':>9}{'x copy':>9}{'pinned us':>11}")
    for r in rows:
        pinned = f"{r['pinned_us']:.1f}" if "pinned_us" in r else ""
        print(
            f"{r['op']:<20}{r['case']:<38}{r['us']:>9.1f}{r['gb_s']:>9.1f}"
            f"{r['torch_us'] / r['us']:>9.2f}{r['copy_us'] / r['us']:>9.2f}{pinned:>11}"
        )


def report(title: str, failures: Failures) -> list[str]:
    found = [f"{name}: {what}" for name, what in failures]
    print(f"{title}: {'ok' if not found else f'{len(found)} FAILED'}", flush=True)
    for line in found:
        print(f"  {line}")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tools/cuda_check.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tier", default="nightly", choices=("default", "nightly"))
    parser.add_argument("--repeat", type=int, default=50, help="timed calls a case (50)")
    parser.add_argument("--report", type=Path, help="also write what was seen to this JSON file")
    options = parser.parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA card; --device cpu rehearses without one")
    rows: list[dict[str, Any]] = []
    with torch.inference_mode():
        failures = report("samples", check_samples(options.tier, options.device))
        failures += report("wrong arguments", check_bad_arguments(options.device))
        if options.device == "cuda":
            print(f"{torch.cuda.get_device_name()}: {triton.warm_up()} kernels compiled")
            failures += report("graph replay", check_replay(options.tier))
            rows = list(time_cases(options.repeat))
            show(rows)
    if options.report:
        card = torch.cuda.get_device_name() if options.device == "cuda" else "no card"
        found = {"device": card, "tier": options.tier, "failures": failures, "timings": rows}
        options.report.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
