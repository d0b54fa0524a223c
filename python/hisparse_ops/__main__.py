"""``python -m hisparse_ops``: say what is installed, show HiSparse at work, replay traces and states, plan."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from hisparse_ops import __version__, _cli, plan


def parser(*, only_plan: bool = False) -> _cli.Parser:
    """The whole command line, or as much of it as needs no torch."""
    top = _cli.Parser(
        prog=_cli.PROGRAM,
        description="HiSparse: sparse-attention KV in host memory behind a small hot buffer.",
    )
    top.add_argument("--version", action="version", version=f"hisparse-ops {__version__}")
    commands = top.add_subparsers(metavar="COMMAND")
    if not only_plan:
        from hisparse_ops import demo, info, postmortem, replay

        for command in (info, demo, replay, postmortem):
            command.add_parser(commands)
    plan.add_parser(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    try:
        try:
            return _run(argv)
        finally:
            # Here, not while Python shuts down, where nothing can catch it.
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough, as in `| head -1`.
        _drop_output()
        return _cli.PIPE_CLOSED
    except OSError as error:
        # Those that name a file are reported where they are raised.
        _drop_output()
        return _misused(f"cannot write the output: {error.strerror or error}")


def _drop_output() -> None:
    """What is left goes nowhere: Python would try it again while it shuts down."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: Sequence[str] | None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    only_plan = list(arguments[:1]) == ["plan"]
    if not only_plan:
        from hisparse_ops import _native

        if _native.isa_error:
            return _misused(_native.isa_error)
    top = parser(only_plan=only_plan)
    args = top.parse_args(arguments)
    if not hasattr(args, "run"):
        top.print_usage(sys.stderr)
        return _misused("no command given; try --help")
    try:
        code: int = args.run(args)
    except _cli.UsageError as error:
        return _misused(str(error))
    except OSError as error:
        if error.filename is None:
            raise
        return _misused(f"{error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        return _cli.INTERRUPTED
    return code


def _misused(sentence: str) -> int:
    print(f"{_cli.PROGRAM}: {sentence}", file=sys.stderr)
    return _cli.MISUSED


if __name__ == "__main__":
    sys.exit(main())
