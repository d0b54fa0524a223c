"""``postmortem``: read a dump of one request's state, say what is wrong with it, and replay it."""

from __future__ import annotations

import argparse
from pathlib import Path

from hisparse_ops import _cli


def add_parser(commands: argparse._SubParsersAction[_cli.Parser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "postmortem",
        help="read and replay a dump of one request's state",
        description="Print the state of one request from a file of PostMortem.save, say what validation finds"
        " in it, and resolve once more from it. Exit code 1 if something is found.",
    )
    parser.add_argument("file", type=Path, help="the JSON file")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """The subcommand."""
    from hisparse_ops.validation.postmortem import PostMortem, PostMortemError

    _cli.require_ops("resolve")
    try:
        dump = PostMortem.load(args.file)
        print(dump.text())
        print(dump.replay())
        found = dump.finding()
    except PostMortemError as error:
        raise _cli.UsageError(str(error)) from error
    except ValueError as error:
        # Sizes or shapes that resolve itself refuses: said in its words.
        raise _cli.UsageError(f"{args.file}: {error}") from error
    return _cli.DIFFERENT if found else _cli.EQUAL
