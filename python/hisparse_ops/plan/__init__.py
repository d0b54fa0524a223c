"""``plan``: how many requests fit with HiSparse OFF and ON, what limits them, and what refills cost."""

from __future__ import annotations

import argparse
from pathlib import Path

from hisparse_ops import _cli
from hisparse_ops.plan import memory, models, refill, report

_GIB = 2**30


def add_parser(commands: argparse._SubParsersAction[_cli.Parser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "plan",
        help="how many requests fit, OFF and ON, and what limits them",
        description="Say how many requests of a workload fit on a device with HiSparse OFF and ON, what limits them,"
        " how much host\nmemory balances the device, and what misses cost on the link. Sizes are those of one rank."
        "\nEvery formula: docs/plan.md.",
        epilog="example:\n  python -m hisparse_ops plan GLM-5.2 --device-kv-gib 20.5 --host-pool-gib 64 --tp 8"
        " --mtp 3\n\nexit code: 0 the plan is printed, 2 the command cannot run",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help=f"{', '.join(models.BUILT_IN)}, or a Hugging Face config.json",
    )
    _add_deployment(parser)
    _add_workload(parser)
    add = parser.add_argument_group("refills").add_argument
    # Measured for scattered 656-byte rows over PCIe: ESS, arXiv 2512.10576.
    add(
        "--link-gb-per-s",
        type=_cli.number(0.001, 1e6),
        default=37.0,
        metavar="X",
        help="bandwidth from the host to a rank for single rows, 10^9 bytes (default 37)",
    )
    add(
        "--step-ms",
        type=_cli.number(0.001, 1e6),
        default=50.0,
        metavar="X",
        help="decode step without refills: measure yours (default 50)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of tables"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="PNG", help="draw concurrency against context length"
    )
    parser.set_defaults(run=run)


def _add_deployment(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("deployment").add_argument
    add(
        "--device-kv-gib",
        type=_cli.number(0.001, 1e6),
        required=True,
        metavar="GIB",
        help="device memory for KV of a rank, as the engine reports it at start",
    )
    add(
        "--host-pool-gib",
        type=_cli.number(0.001, 1e6),
        metavar="GIB",
        help="host pool of a rank (default: as if there were enough)",
    )
    add(
        "--shared-host-pool",
        action="store_true",
        help="one host pool for all ranks of a node, not one each",
    )
    add("--tp", type=_cli.integer(1, 1024), default=1, metavar="N", help="ranks (default 1)")
    add("--kv", choices=models.FORMATS, default="c8", help="main KV cache (default c8)")
    add("--indexer", choices=models.FORMATS, default="c8", help="indexer cache (default c8)")
    add(
        "--mtp",
        type=_cli.integer(0, 15),
        default=0,
        metavar="N",
        help="draft tokens of a step (default 0)",
    )
    add(
        "--hot-size",
        type=_cli.integer(1, memory.MAX_HOT_SIZE),
        metavar="N",
        help="rows of a request's hot buffer (default: (MTP + 2) * top-k)",
    )
    add(
        "--block-size",
        type=_cli.integer(1, 65536),
        default=128,
        metavar="N",
        help="tokens of a page (default 128)",
    )
    add(
        "--max-seqs",
        type=_cli.integer(1),
        metavar="N",
        help="most running requests of the engine (default: no limit)",
    )
    add(
        "--batched-tokens",
        type=_cli.integer(1),
        default=8192,
        metavar="N",
        help="most tokens of a step, a prefill chunk (default 8192)",
    )
    add(
        "--sync-scheduling",
        action="store_true",
        help="one batch in flight; vLLM's default is asynchronous, with two",
    )


def _add_workload(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("workload").add_argument
    add(
        "--context",
        type=_cli.integer(1),
        default=32768,
        metavar="N",
        help="tokens of a prompt (default 32768)",
    )
    add(
        "--output",
        type=_cli.integer(1),
        default=8192,
        metavar="N",
        help="tokens that a request generates (default 8192)",
    )


def run(args: argparse.Namespace) -> int:
    """The subcommand."""
    if args.plot:
        _cli.require_extra("matplotlib")
        _cli.require_writable("--plot", args.plot)
    setup = _setup(args, models.find(args.model))
    link = refill.Link(args.link_gb_per_s * 1e9, args.step_ms / 1e3)
    found = report.Plan.of(setup, link)
    print(report.as_json(found) if args.json else report.as_text(found))
    if args.plot:
        report.plot(args.plot, found)
    return _cli.EQUAL


def _setup(args: argparse.Namespace, model: models.Model) -> memory.Setup:
    """The question, with what one step needs checked against the hot size."""
    needed = (args.mtp + 1) * model.top_k
    if args.mtp and not model.mtp_layers:
        raise _cli.UsageError(f"--mtp must be 0 for a model without MTP layers, got {args.mtp}")
    if needed > memory.MAX_HOT_SIZE:
        raise _cli.UsageError(
            f"(mtp + 1) * top-k must be at most {memory.MAX_HOT_SIZE}, got {needed}"
        )
    hot_size = args.hot_size or memory.default_hot_size(model, args.mtp)
    if hot_size < needed:
        raise _cli.UsageError(
            f"--hot-size must be at least (mtp + 1) * top-k = {needed}, got {hot_size}"
        )
    tokens = args.context + args.output
    if tokens > model.max_length:
        raise _cli.UsageError(
            f"--context + --output must be at most {model.max_length}, the model's longest, got {tokens}"
        )
    return memory.Setup(
        model=model,
        device_bytes=int(args.device_kv_gib * _GIB),
        host_bytes=None if args.host_pool_gib is None else int(args.host_pool_gib * _GIB),
        kv=args.kv,
        indexer=args.indexer,
        tp=args.tp,
        mtp=args.mtp,
        hot_size=hot_size,
        block_size=args.block_size,
        context=args.context,
        output=args.output,
        max_seqs=args.max_seqs,
        batched_tokens=args.batched_tokens,
        batches_in_flight=1 if args.sync_scheduling else 2,
        shared_host=args.shared_host_pool,
    )
