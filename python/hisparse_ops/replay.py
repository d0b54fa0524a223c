"""``replay``: hit rates, bytes and times of a top-k trace for hot buffers of several sizes."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from hisparse_ops import _cli, traces
from hisparse_ops._cli import counted
from hisparse_ops._hot_buffer import OPS
from hisparse_ops._replay import Replay, check_sizes, replay
from hisparse_ops.resolver import MAX_HOT_SIZE

# Option -> default and help. A trace file says these itself.
_PRESET_OPTIONS = {
    "--context": (68665, "tokens before the first step"),
    "--top-k": (2048, "positions that a query row selects"),
    "--steps": (200, "decode steps"),
    "--requests": (1, "requests, each with a selection of its own"),
    "--mtp-rows": (1, "query rows of a request in a step, resolved as one run"),
}
_MAX_TRACE_BYTES = 2**31
# What leaves the warm-up out; everything else in a result covers all steps.
_WINDOW_KEYS = (
    "hit_rate",
    "misses_per_step",
    "evictions_per_step",
    "refill_bytes_per_step",
    "op_us",
)


def add_parser(commands: argparse._SubParsersAction[_cli.Parser]) -> None:
    """Add the subcommand."""
    presets = "\n".join(f"  {name:<12} {p.about}" for name, p in traces.PRESETS.items())
    parser = commands.add_parser(
        "replay",
        help="replay a top-k trace through resolve and gather_compact",
        description="Replay a top-k trace through resolve and gather_compact with hot buffers of one or several"
        " sizes, check\nevery row that attention would read, and print hit rates, evictions, bytes and times.",
        epilog=f"synthetic presets:\n{presets}\n\nexit code: 0 every row was right, 1 a row was wrong or the trace"
        " selects nothing, 2 the command cannot run",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "trace",
        metavar="TRACE",
        help="a file written by demo --save-trace, or the name of a synthetic preset",
    )
    add = parser.add_argument
    positive = _cli.integer(1)
    add(
        "--hot-size",
        type=_sizes,
        metavar="N[,N...]",
        help="slots of a request (default: four sizes from top-k up)",
    )
    add(
        "--row-bytes",
        type=_cli.integer(1, 65536),
        default=656,
        metavar="N",
        help="bytes of a KV row (default 656)",
    )
    add(
        "--block-size",
        type=_cli.integer(1, 65536),
        default=64,
        metavar="N",
        help="rows of a page (default 64)",
    )
    add(
        "--warmup",
        type=_cli.integer(0),
        metavar="N",
        help="first steps, left out of all columns (default: a quarter, at most 50)",
    )
    add(
        "--seed",
        type=_cli.integer(0),
        default=0,
        metavar="N",
        help="seed of traces, tables and bytes (default 0)",
    )
    add("--json", action="store_true", help="print one JSON object instead of the table")
    add(
        "--plot",
        type=Path,
        metavar="PNG",
        help="draw hit rate against hot size, and misses over time",
    )
    preset = parser.add_argument_group("for synthetic presets (a file has its own)")
    for option, (default, text) in _PRESET_OPTIONS.items():
        preset.add_argument(option, type=positive, metavar="N", help=f"{text} (default {default})")
    parser.set_defaults(run=run)


def _sizes(text: str) -> list[int]:
    parse = _cli.integer(1, MAX_HOT_SIZE)
    return sorted({parse(part) for part in text.split(",")})


def run(args: argparse.Namespace) -> int:
    """The subcommand."""
    if args.plot:
        _cli.require_extra("matplotlib")
        _cli.require_writable("--plot", args.plot)
    trace = _trace(args)
    _cli.require_ops(*OPS)
    warmup = min(50, trace.steps // 4) if args.warmup is None else args.warmup
    if warmup >= trace.steps:
        raise _cli.UsageError(
            f"--warmup must be below the trace's {trace.steps} steps, got {warmup}"
        )
    sizes = args.hot_size or default_sizes(trace)
    for size in sizes:
        check_sizes(trace, size, args.row_bytes, args.block_size)
    results = [
        replay(
            trace,
            size,
            row_bytes=args.row_bytes,
            block_size=args.block_size,
            warmup=warmup,
            seed=args.seed,
        )
        for size in sizes
    ]
    print(_as_json(trace, results) if args.json else _as_text(trace, results))
    if args.plot:
        plot(args.plot, trace, results)
    return _judge(results)[0]


def _judge(results: list[Replay]) -> tuple[int, str]:
    """Exit code and one sentence."""
    wrong = sum(r.wrong_rows for r in results)
    if wrong:
        return _cli.DIFFERENT, f"WRONG: {wrong} rows differ from the host"
    if not results[0].total_hits + results[0].total_misses:
        return _cli.DIFFERENT, "PROVED NOTHING: the trace selects nothing, so no row was read"
    return _cli.EQUAL, "every row read was the host's"


def _trace(args: argparse.Namespace) -> traces.Trace:
    """The file, or the preset, that the arguments name."""
    given = {o: getattr(args, o[2:].replace("-", "_")) for o in _PRESET_OPTIONS}
    if args.trace not in traces.PRESETS:
        for option, value in given.items():
            if value is not None:
                raise _cli.UsageError(
                    f"{option} is for synthetic presets; {args.trace} has its own"
                )
        if not Path(args.trace).exists():
            known = ", ".join(traces.PRESETS)
            raise _cli.UsageError(f"{args.trace}: no such file, and no preset ({known})")
        return traces.load(args.trace)
    options = {
        o[2:].replace("-", "_"): default if given[o] is None else given[o]
        for o, (default, _) in _PRESET_OPTIONS.items()
    }
    size = 4 * options["steps"] * options["requests"] * options["mtp_rows"] * options["top_k"]
    if size > _MAX_TRACE_BYTES or options["context"] > traces.MAX_LENGTH // 2:
        raise _cli.UsageError(
            f"a synthetic trace may take at most {_MAX_TRACE_BYTES >> 20} MiB and start at {traces.MAX_LENGTH // 2}"
            f" tokens, got {size >> 20} MiB and {options['context']} tokens"
        )
    return traces.generate(args.trace, **options, seed=args.seed)


def default_sizes(trace: traces.Trace) -> list[int]:
    """Four sizes from about the smallest that can serve the trace up to four times that."""
    needed = max(trace.top_k, trace.largest_union())
    if needed > 256:
        needed += -needed % 128
    return sorted({min(MAX_HOT_SIZE, needed * m // 2) for m in (2, 3, 4, 8)})


def _as_text(trace: traces.Trace, results: list[Replay]) -> str:
    head = (
        f"{trace.source}: {counted(trace.steps, 'step')}, {counted(trace.requests, 'request')} x"
        f" {counted(trace.mtp_rows, 'query row')}, top-k {trace.top_k}, up to {trace.lengths.max()} tokens,"
        f" {counted(trace.groups, 'index group')}\n"
        f"overlap of consecutive steps {_cli.percent(trace.overlap())}\n\n"
        "hot size  hit rate  misses/step  evictions/step  host to hot/step  resolve  gather_compact\n"
    )
    rows = [
        f"{r.hot_size:8d}  {_cli.percent(r.hit_rate):>8}  {r.misses_per_step:11.1f}  {r.evictions_per_step:14.1f}"
        f"  {r.refill_bytes_per_step / 2**10:12.1f} KiB  {r.op_us['resolve']:4.0f} us"
        f"  {r.op_us['gather_compact']:11.0f} us"
        for r in results
    ]
    return head + "\n".join([*rows, "", _window(results[0]), _judge(results)[1]])


def _window(result: Replay) -> str:
    """Which steps the columns cover."""
    if result.warmup == 0:
        return f"all columns: mean of all {counted(result.steps, 'step')}"
    return (
        f"all columns: mean of steps {result.warmup + 1} to {result.steps} of {result.steps};"
        f" the first {counted(result.warmup, 'step')} of warm-up left out"
    )


def _as_json(trace: traces.Trace, results: list[Replay]) -> str:
    about = {
        "source": trace.source,
        "steps": trace.steps,
        "groups": trace.groups,
        "requests": trace.requests,
        "mtp_rows": trace.mtp_rows,
        "top_k": trace.top_k,
        "max_length": int(trace.lengths.max()),
        "overlap": _cli.finite(trace.overlap()),
    }
    return json.dumps(
        {
            "verdict": _judge(results)[1],
            "trace": about,
            "window": {
                "first_step": results[0].warmup + 1,
                "last_step": trace.steps,
                "keys": _WINDOW_KEYS,
            },
            "results": [{**asdict(r), "hit_rate": _cli.finite(r.hit_rate)} for r in results],
        },
        indent=1,
    )


def plot(path: Path, trace: traces.Trace, results: list[Replay], used: int | None = None) -> None:
    """Draw the results of several hot sizes."""
    from hisparse_ops import _plot

    shown = results if len(results) <= 3 else [results[0], results[len(results) // 2], results[-1]]
    _plot.draw(
        path,
        f"{_cli.plain(trace.source)}: top-k {trace.top_k} of up to {trace.lengths.max()} tokens",
        [(r.hot_size, r.hit_rate) for r in results],
        {f"hot size {r.hot_size}": r.miss_timeline for r in shown},
        used=used,
        per_step=trace.topk[0].size,
    )
