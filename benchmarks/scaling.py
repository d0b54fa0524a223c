"""How the resolver's cost grows: one parameter at a time, the others as in a GLM-5.2 step with MTP3."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import torch

import hisparse_ops
from benchmarks.baselines.resolve import contenders as baselines_of
from benchmarks.cases.resolve import step
from benchmarks.measure import Args, measure, on_copy

_SHOWN = ("hisparse", "peers' algorithm", "state streamed once")
_BASE: dict[str, Any] = {
    "requests": 8,
    "rows": 4,
    "hot_size": 10240,
    "hit_rate": 0.93,
    "context": 32768,
    "top_k": 2048,
}
SWEEPS: dict[str, tuple[str, Sequence[Any]]] = {
    "requests": ("requests", (1, 2, 4, 8, 16, 32, 64, 128)),
    "top-k": ("top_k", (64, 128, 256, 512, 1024, 2048)),
    "hot size over top-k": ("hot_size", (4096, 6144, 8192, 12288, 16384, 24576, 32768)),
    "query rows of a request": ("rows", (1, 2, 3, 4)),
    "context (tokens)": ("context", (32768, 65536, 131072, 262144, 524288, 1048576)),
    "hit rate (%)": ("hit_rate", (0.0, 0.2, 0.5, 0.8, 0.93, 1.0)),
}


def shown_value(parameter: str, value: Any) -> float:
    if parameter == "hot_size":
        return float(value) / 2048
    return 100 * float(value) if parameter == "hit_rate" else float(value)


def arguments(**changes: Any) -> Args:
    options = _BASE | changes
    if "hot_size" in changes:
        # Two query rows, so that a hot buffer twice the top-k can serve them.
        options["rows"] = 2
    options["hot_size"] = max(options["hot_size"], options["rows"] * options["top_k"])
    options["context"] = max(options["context"], 2 * options["hot_size"])  # something to miss
    return step(torch.Generator().manual_seed(0), **options)


def times_of(args: Args, repeats: int) -> dict[str, float]:
    ours = on_copy("resolve", "hisparse", args, hisparse_ops.ops()["resolve"].call)
    beside = [c for c in baselines_of(args) if c.name in _SHOWN]
    return {t.name: t.median for t in measure([ours, *beside], repeats)}


def thread_sweep(repeats: int) -> list[tuple[float, dict[str, float]]]:
    most = torch.get_num_threads()
    points = []
    for threads in range(1, most + 1):
        torch.set_num_threads(threads)
        points.append((float(threads), times_of(arguments(), repeats)))
    torch.set_num_threads(most)
    return points


def sweep(
    parameter: str,
    values: Sequence[Any],
    repeats: int,
    tell: Callable[[float, dict[str, float]], None],
) -> list[tuple[float, dict[str, float]]]:
    points = []
    for value in values:
        points.append(
            (shown_value(parameter, value), times_of(arguments(**{parameter: value}), repeats))
        )
        tell(*points[-1])
    return points


def run_scaling(options: argparse.Namespace) -> int:
    from benchmarks.__main__ import save
    from benchmarks.plots import draw_scaling

    def tell(value: float, times: dict[str, float]) -> None:
        cells = "".join(f"{times[name] * 1e6:>26.1f}" for name in _SHOWN)
        print(f"{value:>14g}{cells}", flush=True)

    series = {}
    for title, (parameter, values) in SWEEPS.items():
        print(f"\n{title:>14}" + "".join(f"{name + ', us':>26}" for name in _SHOWN))
        series[title] = sweep(parameter, values, options.repeats, tell)
    print(f"\n{'threads':>14}")
    series["threads"] = thread_sweep(options.repeats)
    for point in series["threads"]:
        tell(*point)
    rows = [
        {"parameter": title, "value": value, "contender": name, "p50_us": seconds * 1e6}
        for title, points in series.items()
        for value, times in points
        for name, seconds in times.items()
    ]
    if options.plot:
        draw_scaling(options.plot, series)
        options.plot = None
    save(options, rows)
    return 0
