"""How Python was started, for the two things that depend on it: `plan` without torch, and errors of the import."""

from __future__ import annotations

import sys


def command() -> list[str] | None:
    """The arguments of ``python -m hisparse_ops``, if it is what imports the package now.

    While Python looks for a module's code, ``sys.argv`` is ``-m`` and the arguments after the module's name.
    """
    if sys.argv[:1] != ["-m"] or sys.orig_argv[-len(sys.argv)].removeprefix("-m") != "hisparse_ops":
        return None
    return sys.argv[1:]


def starts_plan() -> bool:
    """Whether the ops can stay away: importing torch takes longer than a plan."""
    return (command() or [])[:1] == ["plan"]
