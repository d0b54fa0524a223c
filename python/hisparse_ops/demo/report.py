"""What the demo shows: progress while it runs, then tables, a verdict, a picture and a summary file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from hisparse_ops import _cli, _plot, traces
from hisparse_ops._cli import counted
from hisparse_ops._hot_buffer import Clock, Counters
from hisparse_ops._replay import Replay, replay
from hisparse_ops.demo.settings import Settings, default_hot_size
from hisparse_ops.resolver import MAX_HOT_SIZE

if TYPE_CHECKING:
    from hisparse_ops.demo.decode import Result, Step

_MIB = 2**20
_ONE_MEMORY = "On a CPU host and device memory are the same, so ON cannot be faster here."


class _Live:
    """Progress bars of the phases; the newest one carries the figures so far."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.task: Any = None
        self.equal = True

    def phase(self, name: str, total: int) -> None:
        self.finish()
        self.task = self.progress.add_task(name, total=total, figures="")

    def finish(self) -> None:
        if self.task is not None:
            task = self.progress.tasks[self.task]
            self.progress.update(self.task, completed=task.total)
            self.progress.stop_task(self.task)

    def step(self, counters: Counters, step: Step | None) -> None:
        if step is None:
            self.progress.advance(self.task)
            return
        # Of all steps so far: the line that stays on the screen is that of the last one.
        self.equal = self.equal and step.equal
        equal = "equal" if self.equal else "[bold]NOT EQUAL[/bold]"
        figures = (
            f"{equal}  hit rate {100 * counters.hit_rate():.1f} %"
            f"  evictions {sum(counters.evictions)}"
        )
        self.progress.update(self.task, advance=1, figures=figures)


def show_model(settings: Settings, out: Path, save_trace: Path | None) -> int:
    """Run the model, show what happened, and return the exit code."""
    # Not at the top: a trace can be shown without transformers.
    from hisparse_ops.demo import decode

    console = Console()
    columns = (
        TextColumn("{task.description:<8}"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TextColumn("{task.elapsed:.0f} s"),
        TextColumn("{task.fields[figures]}"),
    )
    with Progress(*columns, console=console) as progress:
        live = _Live(progress)
        result = decode.decode(settings, live.phase, live.step)
        live.finish()
    if save_trace:
        traces.save(result.trace, save_trace)
    _print_title(console, _model_title(settings))
    console.print(_model_table(result))
    console.print(_ONE_MEMORY, soft_wrap=True, highlight=False)
    console.print(_op_table(result.clock, result.seconds["on"]))
    _draw_model(out / "demo.png", result)
    code, verdict = judge(result)
    _write_summary(out / "summary.json", {"verdict": verdict, **_model_figures(result)})
    _print_end(console, verdict, out, save_trace)
    return code


def _print_title(console: Console, title: str) -> None:
    console.print()
    console.print(title, style="bold", soft_wrap=True, highlight=False, markup=False)


def _print_end(console: Console, verdict: str, out: Path, trace: Path | None = None) -> None:
    written = [out / "demo.png", out / "summary.json", *([trace] if trace else [])]
    names = ", ".join(str(path) for path in written)
    console.print(f"wrote {names}", soft_wrap=True, highlight=False, markup=False)
    console.print(verdict, style="bold", soft_wrap=True, highlight=False)


def judge(result: Result) -> tuple[int, str]:
    """Exit code and one sentence."""
    if result.differing:
        first = result.differing[0]
        what = [
            name
            for name, same in (
                ("top-k", first.same_topk),
                ("logits", first.same_logits),
                ("tokens", first.same_tokens),
            )
            if not same
        ]
        return _cli.DIFFERENT, (
            f"NOT EQUAL: {len(result.differing)} of {len(result.steps)} steps differ, first at step"
            f" {first.number + 1} of {len(result.steps)}, where ON and OFF have different"
            f" {' and '.join(what)} (a logit differs by up to {first.largest_difference:.3g})"
        )
    if not result.proves:
        return _cli.DIFFERENT, (
            "PROVED NOTHING: all steps are equal, but there were no"
            f" {', '.join(_never(result.counters))}; try a longer --context or a smaller --hot-size"
        )
    return _cli.EQUAL, (
        f"EQUAL: tokens, logits and top-k of all {len(result.steps)} steps are the same bit for bit"
    )


def _never(counters: Counters) -> list[str]:
    named = {"hits": counters.hits, "misses": counters.misses, "evictions": counters.evictions}
    return [name for name, counts in named.items() if sum(counts) == 0]


def _model_title(settings: Settings) -> str:
    return (
        f"{settings.model}, {settings.dtype}: {counted(settings.requests, 'request')} x"
        f" {counted(settings.mtp_rows, 'query row')},"
        f" context {settings.context}, top-k {settings.top_k}, hot size {settings.hot_size}"
    )


def _model_table(result: Result) -> Table:
    settings, counters, steps = result.settings, result.counters, len(result.steps)
    groups = result.trace.groups
    table = _table()
    table.add_row("steps equal, ON and OFF", f"{steps - len(result.differing)} of {steps}")
    table.add_row("tokens kept", f"{result.kept_tokens}")
    table.add_row("hit rate", f"{100 * counters.hit_rate():.1f} %")
    for name, counts in (("rows loaded", counters.misses), ("evictions", counters.evictions)):
        per_step = sum(counts) / steps
        table.add_row(
            name, f"{sum(counts)} ({per_step:.0f} a step in {counted(groups, 'index group')})"
        )
    if settings.resident_pages:
        table.add_row("answered by resident pages", f"{sum(counters.resident)}")
    loaded = result.refill_bytes / _MIB
    table.add_row("host to hot, all layers", f"{loaded:.1f} MiB ({loaded / steps:.2f} MiB a step)")
    table.add_row(
        "KV rows on the device",
        f"ON {result.slab_bytes / _MIB:.1f} MiB, OFF {result.complete_bytes / _MIB:.1f} MiB",
    )
    for name, cell in _times(result):
        table.add_row(name, cell)
    table.add_row("prefill", f"{result.seconds['prefill']:.1f} s")
    return table


def _times(result: Result) -> list[tuple[str, str]]:
    """Both rows are of the whole batch: neither is what one request waits for a token."""
    on, off = result.seconds["on"], result.seconds["off"]
    steps, tokens = len(result.steps), result.kept_tokens
    return [
        (
            "time of a step, all requests",
            f"ON {1e3 * on / steps:.1f} ms, OFF {1e3 * off / steps:.1f} ms",
        ),
        ("tokens/s, all requests", f"ON {tokens / on:.0f}, OFF {tokens / off:.0f}"),
    ]


def _op_table(clock: Clock, total: float) -> Table:
    table = Table("op")
    for head in ("calls", "us a call", "ms in all", "share of ON"):
        table.add_column(head, justify="right")
    for op, seconds in sorted(clock.seconds.items(), key=lambda item: -item[1]):
        calls = clock.calls[op]
        cells = [op, f"{calls}", f"{1e6 * seconds / calls:.0f}", f"{1e3 * seconds:.1f}"]
        table.add_row(*cells, f"{100 * seconds / total:.1f} %")
    return table


def _table() -> Table:
    return Table("", "", show_header=False)


def _curve_sizes(trace: traces.Trace, *used: int) -> list[int]:
    """Hot sizes from the smallest that can serve the trace to one that holds a whole request."""
    low = max(trace.top_k, trace.largest_union())
    high = min(MAX_HOT_SIZE, max(int(trace.lengths.max()), low))
    steps = 5
    sizes = {round(low * (high / low) ** (i / steps)) for i in range(steps + 1)}
    return sorted(sizes | {size for size in used if size >= low})


def _draw_model(path: Path, result: Result) -> None:
    trace, used = result.trace, result.settings.hot_size
    replays = [
        replay(trace, size, row_bytes=0, block_size=result.settings.block_size)
        for size in _curve_sizes(trace, used)
    ]
    curve = [(r.hot_size, r.hit_rate) for r in replays if r.hot_size != used]
    curve.append((used, result.counters.hit_rate()))
    timelines = {f"hot size {used} (this run)": result.counters.misses, **_others(replays, used)}
    title = f"{trace.source}: top-k {trace.top_k} of up to {trace.lengths.max()} tokens"
    _plot.draw(path, title, sorted(curve), timelines, used=used, per_step=trace.topk[0].size)


def _others(replays: Sequence[Replay], used: int) -> dict[str, Sequence[int]]:
    """Miss timelines of two larger hot sizes, for comparison with the one in use."""
    larger = [r for r in replays if r.hot_size > used]
    shown = larger[-1:] if len(larger) < 3 else [larger[len(larger) // 2], larger[-1]]
    return {f"hot size {r.hot_size}": r.miss_timeline for r in shown}


def show_trace(
    path: Path, out: Path, hot_size: int | None, block_size: int, seed: int, corrupt: bool
) -> int:
    """Replay a recorded trace, show what happened, and return the exit code."""
    console = Console()
    trace = traces.load(path)
    used = hot_size or default_hot_size(trace.top_k, trace.mtp_rows)
    result = replay(trace, used, block_size=block_size, seed=seed, corrupt=corrupt)
    sizes = _curve_sizes(trace)
    replays = [replay(trace, s, row_bytes=0, block_size=block_size) for s in sizes]
    _print_title(console, _trace_title(trace, used))
    console.print(_trace_table(trace, result))
    curve = sorted([*((r.hot_size, r.hit_rate) for r in replays), (used, result.hit_rate)])
    timelines = {f"hot size {used}": result.miss_timeline, **_others(replays, used)}
    _plot.draw(
        out / "demo.png",
        _cli.plain(trace.source),
        curve,
        timelines,
        used=used,
        per_step=trace.topk[0].size,
    )
    code, verdict = _judge_trace(result)
    figures = {**asdict(result), "hit_rate": _cli.finite(result.hit_rate)}
    _write_summary(out / "summary.json", {"verdict": verdict, **figures})
    _print_end(console, verdict, out)
    return code


def _trace_title(trace: traces.Trace, hot_size: int) -> str:
    return (
        f"{trace.source}: {counted(trace.requests, 'request')} x {counted(trace.mtp_rows, 'query row')},"
        f" top-k {trace.top_k}, hot size {hot_size}"
    )


def _trace_table(trace: traces.Trace, result: Replay) -> Table:
    table = _table()
    table.add_row("steps", f"{trace.steps} in {counted(trace.groups, 'index group')}")
    table.add_row("hit rate", _cli.percent(result.hit_rate))
    table.add_row("rows loaded", f"{result.total_misses}")
    table.add_row("evictions", f"{result.total_evictions}")
    table.add_row(
        "host to hot, a layer of each group", f"{result.total_refill_bytes / _MIB:.1f} MiB"
    )
    for op, microseconds in result.op_us.items():
        table.add_row(f"{op}, one call", f"{microseconds:.0f} us")
    return table


def _judge_trace(result: Replay) -> tuple[int, str]:
    if result.wrong_rows:
        return _cli.DIFFERENT, f"NOT EQUAL: {result.wrong_rows} rows differ from the host's"
    if not (result.total_hits and result.total_misses and result.total_evictions):
        return _cli.DIFFERENT, (
            "PROVED NOTHING: every row was right, but hits, misses or evictions are missing;"
            " try a smaller --hot-size"
        )
    return _cli.EQUAL, "EQUAL: every row that attention would read is the host's, bit for bit"


def _model_figures(result: Result) -> dict[str, Any]:
    counters: Counters = result.counters
    return {
        "settings": asdict(result.settings),
        "steps_equal": len(result.steps) - len(result.differing),
        "steps": len(result.steps),
        "tokens_kept": result.kept_tokens,
        "hit_rate": counters.hit_rate(),
        "hits": sum(counters.hits),
        "misses": sum(counters.misses),
        "evictions": sum(counters.evictions),
        "resident": sum(counters.resident),
        "misses_per_step": counters.misses,
        "refill_bytes": result.refill_bytes,
        "slab_bytes": result.slab_bytes,
        "complete_bytes": result.complete_bytes,
        "seconds": result.seconds,
        "op_seconds": dict(result.clock.seconds),
        "op_calls": dict(result.clock.calls),
    }


def _write_summary(path: Path, figures: dict[str, Any]) -> None:
    path.write_text(json.dumps(figures, indent=1) + "\n")
