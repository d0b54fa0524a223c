"""The ratios that the project promises, each measured in this run; the exit status tells whether all floors hold."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import hisparse_ops
from benchmarks.__main__ import cases_of, contenders, make_args, save
from benchmarks.bare import bare_call, empty_args
from benchmarks.measure import Times, measure, on_copy


@dataclass(frozen=True)
class Ratio:
    """One line of the table: a measured ratio, at least ``floor``, with a goal beyond it."""

    what: str
    case: str
    measured: Callable[[dict[str, Times]], float]
    floor: float | None = None
    goal: float | None = None
    unit: str = "x"
    at_most: bool = False

    def holds(self, value: float, bound: float | None) -> bool:
        return bound is None or (value <= bound if self.at_most else value >= bound)


def faster_than(name: str, case: str, floor: float | None, goal: float | None = None) -> Ratio:
    return Ratio(
        f"times as fast as {name}",
        case,
        lambda t: t[name].median / t["hisparse"].median,
        floor,
        goal,
    )


def limit_of(times: dict[str, Times]) -> float:
    """The fastest way to move the bytes, after the call that any op costs."""
    limits = [t.median for t in times.values() if t.is_limit and t.name != "bare call"]
    return min(limits) + times["bare call"].median


def share_of_limit(case: str, floor: float | None, goal: float) -> Ratio:
    return Ratio(
        "of the limit",
        case,
        lambda t: limit_of(t) / t["hisparse"].median,
        floor,
        goal,
    )


def times_the_limit(case: str, goal: float) -> Ratio:
    return Ratio(
        "times the limit",
        case,
        lambda t: t["hisparse"].median / limit_of(t),
        None,
        goal,
        at_most=True,
    )


_PLANS = [f"plan-{n}x{b}B" for b in (656, 1152) for n in (1, 16, 256, 2048, 8192)]
_ROWS = [f"rows-{n}x{b}B" for b in (656, 1152) for n in (1, 16, 256, 2048, 8192)]

RATIOS: dict[str, list[Ratio]] = {
    "resolve": [
        faster_than("obvious C++", "glm52-mtp3", 7),
        faster_than("peers' algorithm", "glm52-mtp3", 3),
        faster_than("torch", "glm52-mtp3", 40),
        times_the_limit("glm52-mtp3", 3),
        faster_than("peers' algorithm", "glm52-mtp3-all-hits", 3, 5),
        faster_than("torch", "glm52-mtp3-resident", 20),
        times_the_limit("glm52-mtp3-resident", 2),
    ],
    "gather_compact": [
        r
        for case in _PLANS
        for r in (share_of_limit(case, 0.9, 1.0), faster_than("torch", case, 2))
    ],
    "copy_resident_rows": [
        r for case in _ROWS for r in (share_of_limit(case, 0.9, 1.0), faster_than("torch", case, 2))
    ],
    "quantize_scatter_c8": [
        faster_than("torch", "glm52-prefill-8192", 5),
        share_of_limit("glm52-prefill-8192", None, 0.8),
    ],
    "invalidate_written": [
        faster_than("torch searchsorted", "GLM-5.2/8192-of-128-requests", 20),
        times_the_limit("GLM-5.2/8192-of-128-requests", 2),
    ],
}
THREADS = [
    ("resolve", "glm52-mtp3"),
    ("gather_compact", "GLM-5.2/cold"),
    ("quantize_scatter_c8", "glm52-prefill-8192"),
]


class Table:
    """Prints a line a ratio, and remembers which floors were missed."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.missed: list[str] = []
        print(f"{'op':<22}{'case':<34}{'measured':>12}  {'':<34}{'floor':>8}{'goal':>8}")

    def add(self, op: str, ratio: Ratio, value: float) -> None:
        digits = 3 if ratio.unit == "%" or value < 1.5 else 1
        line = f"{op:<22}{ratio.case:<34}{value:>11.{digits}f}{ratio.unit[:1]}  {ratio.what:<34}"
        line += f"{'' if ratio.floor is None else f'{ratio.floor:g}':>8}"
        line += f"{'' if ratio.goal is None else f'{ratio.goal:g}':>8}"
        if not ratio.holds(value, ratio.floor):
            self.missed.append(f"{op} {ratio.case}: {value:.3g} {ratio.what}")
            line += "  MISSED"
        elif ratio.goal is not None and ratio.holds(value, ratio.goal):
            line += "  goal"
        print(line.rstrip(), flush=True)
        self.rows.append(
            {
                "op": op,
                "case": ratio.case,
                "what": ratio.what,
                "measured": value,
                "floor": ratio.floor,
                "goal": ratio.goal,
            }
        )


def add_ratios(table: Table, repeats: int) -> None:
    for op, ratios in RATIOS.items():
        for case in dict.fromkeys(r.case for r in ratios):
            args = make_args(cases_of(op).CASES[case])
            times = {t.name: t for t in measure(contenders(op, args), repeats)}
            for ratio in ratios:
                if ratio.case == case:
                    table.add(op, ratio, ratio.measured(times))


def add_empty_calls(table: Table, repeats: int) -> None:
    """A call with nothing to do, over a call of an op that does nothing."""
    for op in hisparse_ops.ops():
        args = empty_args(op)
        ours = on_copy(op, "hisparse", args, hisparse_ops.ops()[op].call)
        times = measure([ours, bare_call(op, args)], 20 * repeats)
        over = (times[0].median - times[1].median) * 1e6
        table.add(
            op,
            Ratio("us over a bare call", "no work", lambda _: 0, 5, unit=" ", at_most=True),
            over,
        )


def add_threads(table: Table, repeats: int) -> None:
    if torch.get_num_threads() < 2:
        print("threads 1 -> 2: not measured, this run has one thread")
        return
    threads = torch.get_num_threads()
    for op, case in THREADS:
        args = make_args(cases_of(op).CASES[case])
        ours = on_copy(op, "hisparse", args, hisparse_ops.ops()[op].call)
        best = []
        for count in (1, 2):
            torch.set_num_threads(count)
            best.append(measure([ours], 2 * repeats)[0].median)
        torch.set_num_threads(threads)
        ratio = Ratio("times as fast with 2 threads as 1", case, lambda _: 0, 1.8, 1.95)
        table.add(op, ratio, best[0] / best[1])


def add_decode_step(table: Table, repeats: int) -> None:
    from benchmarks.decode_step import DecodeStep

    for hit_rate, floor, goal in ((1.0, 3.0, 1.0), (0.93, 6.0, 3.0)):
        step = DecodeStep(hit_rate)
        if not step.is_exact():
            raise SystemExit(
                "benchmarks: the decode step with HiSparse differs from the one without"
            )
        off, on = measure(step.contenders(), max(6, repeats // 3))
        case = f"{1 - hit_rate:.0%} misses"
        ratio = Ratio(
            "% more than all KV in place", case, lambda _: 0, floor, goal, "%", at_most=True
        )
        table.add("decode step", ratio, 100 * (on.median / off.median - 1))


def run_table(options: argparse.Namespace) -> int:
    table = Table()
    add_ratios(table, options.repeats)
    add_empty_calls(table, options.repeats)
    add_threads(table, options.repeats)
    add_decode_step(table, options.repeats)
    save(options, table.rows)
    for line in table.missed:
        print(f"missed: {line}", file=sys.stderr)
    print(f"{len(table.rows) - len(table.missed)} of {len(table.rows)} floors hold")
    return 1 if table.missed else 0


__all__: Sequence[str] = ["run_table"]
