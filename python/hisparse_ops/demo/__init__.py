"""``demo``: a public DSA model decodes with HiSparse ON and OFF side by side, and both must agree bit for bit."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hisparse_ops import _cli
from hisparse_ops._hot_buffer import OPS
from hisparse_ops.demo.settings import DTYPES, MODELS, Settings, default_hot_size
from hisparse_ops.resolver import MAX_HOT_SIZE

_DESCRIPTION = """\
Run a public sparse-attention model of transformers (unpatched; small random weights; real text) and decode twice,
side by side. OFF reads the rows that the model selects from a complete cache. ON keeps all rows in a host cache and
serves them through small hot buffers with this library's ops. Tokens, logits and top-k of every step must be equal
bit for bit. Prints a table and writes a picture.

A CPU has one memory: ON shows what the ops cost, and cannot gain anything. Random weights select almost at random:
the hit rate says nothing about a trained model (`replay` has traces calibrated on one)."""

_EPILOG = """\
exit code: 0 all steps equal; 1 a step differs, or the run proved nothing (no hits, misses or evictions);
2 the command cannot run"""

# Option -> default and help. None of them goes with --trace.
_MODEL_OPTIONS: dict[str, tuple[int | str, str]] = {
    "--model": ("glm_moe_dsa", "GLM-5 (layers 1 and 2 share one top-k) or DeepSeek-V3.2"),
    "--dtype": (
        "fp32",
        "model and rows in fp32 or bf16; c8: bf16 model, 656-byte FP8 rows on both sides",
    ),
    "--requests": (4, "requests decoded together, with prompts of different lengths"),
    "--context": (2048, "tokens of the longest prompt; the shortest has a bit more than half"),
    "--top-k": (256, "rows that a query row attends to"),
    "--steps": (64, "decode steps; both names are one option"),
    "--mtp-rows": (
        1,
        "query rows of a request in a step. 1: greedy decoding. N: the form of an MTP verification, one token and"
        " N-1 drafts at once, resolved as one run. The drafts are the text itself, from a random one on replaced by"
        " wrong tokens; those are rolled back after the step and their rows rewritten",
    ),
    "--resident-pages": (0, "leading pages of each request that stay on the device"),
}
_CHOICES = {"--model": MODELS, "--dtype": DTYPES}
_RANGES = {
    "--requests": (1, 64),
    "--context": (16, 32768),
    "--top-k": (2, 16384),
    "--steps": (1, 4096),
    "--mtp-rows": (1, 16),
    "--resident-pages": (0, 4096),
}


def add_parser(commands: argparse._SubParsersAction[_cli.Parser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "demo",
        help="decode with a public model, HiSparse ON against OFF",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # argparse would list --help, and its group, before the model's options.
        add_help=False,
    )
    model = parser.add_argument_group("model options (not with --trace)")
    for option, (default, text) in _MODEL_OPTIONS.items():
        names = [option, "--new-tokens"] if option == "--steps" else [option]
        text = f"{text} (default {default})"
        if option in _CHOICES:
            model.add_argument(*names, choices=_CHOICES[option], help=text)
        else:
            kind = _cli.integer(*_RANGES[option])
            model.add_argument(*names, type=kind, metavar="N", help=text)
    add = parser.add_argument_group("general options").add_argument
    add("-h", "--help", action="help", help="show this help message and exit")
    add(
        "--hot-size",
        type=_cli.integer(1, MAX_HOT_SIZE),
        metavar="N",
        help="slots of each request's hot buffer (default 2 * top-k * mtp-rows, at most"
        f" {MAX_HOT_SIZE}; with --trace of the trace's numbers)",
    )
    add(
        "--block-size",
        type=_cli.integer(1, 4096),
        default=64,
        metavar="N",
        help="rows of a page (default 64)",
    )
    add("--seed", type=_cli.integer(0), default=0, metavar="N", help="default 0")
    add(
        "--corrupt",
        action="store_true",
        help="give one hot row the bytes of another halfway: the comparison must fail (exit code 1)",
    )
    add(
        "--out",
        type=Path,
        default=Path("demo-out"),
        metavar="DIR",
        help="where demo.png and summary.json go (default demo-out)",
    )
    add("--save-trace", type=Path, metavar="FILE", help="record the top-k of every step (.npz)")
    add(
        "--trace",
        type=Path,
        metavar="FILE",
        help="replay a recorded trace instead of running the model; rows are random bytes, and those that"
        " attention would read are compared with the host's",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """The subcommand."""
    return _run_trace(args) if args.trace else _run_model(args)


def _given(args: argparse.Namespace, option: str) -> int | str | None:
    value: int | str | None = getattr(args, option[2:].replace("-", "_"))
    return value


def _run_trace(args: argparse.Namespace) -> int:
    refused = [option for option in _MODEL_OPTIONS if _given(args, option) is not None]
    if args.save_trace:
        refused.append("--save-trace")
    if refused:
        raise _cli.UsageError(f"{refused[0]} needs the model, and --trace replays without one")
    _cli.require_extra("matplotlib", "rich")
    _cli.require_ops(*OPS)
    args.out.mkdir(parents=True, exist_ok=True)
    from hisparse_ops.demo import report

    return report.show_trace(
        args.trace, args.out, args.hot_size, args.block_size, args.seed, args.corrupt
    )


def _run_model(args: argparse.Namespace) -> int:
    settings = _settings(args)
    _cli.require_extra(*_cli.EXTRA)
    rows = ("quantize_scatter_c8", "dequantize_c8") if settings.dtype == "c8" else ("scatter_rows",)
    _cli.require_ops(*OPS, *rows)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.save_trace:
        _cli.require_writable("--save-trace", args.save_trace)
    from hisparse_ops.demo import report

    return report.show_model(settings, args.out, args.save_trace)


def _settings(args: argparse.Namespace) -> Settings:
    """The options, filled with defaults and checked against each other."""
    values: dict[str, Any] = {
        option[2:].replace("-", "_"): default
        if _given(args, option) is None
        else _given(args, option)
        for option, (default, _) in _MODEL_OPTIONS.items()
    }
    top_k, context = values["top_k"], values["context"]
    union = top_k * values["mtp_rows"]
    if union > MAX_HOT_SIZE:
        raise _cli.UsageError(f"top-k * mtp-rows must be at most {MAX_HOT_SIZE}, got {union}")
    hot_size = args.hot_size or default_hot_size(top_k, values["mtp_rows"])
    if top_k > context:
        raise _cli.UsageError(f"--top-k must be at most --context = {context}, got {top_k}")
    if hot_size < union:
        raise _cli.UsageError(
            f"--hot-size must be at least top-k * mtp-rows = {union}, got {hot_size}"
        )
    return Settings(
        **values,
        hot_size=hot_size,
        block_size=args.block_size,
        seed=args.seed,
        corrupt=args.corrupt,
    )
