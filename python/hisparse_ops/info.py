"""``info``: which ops have a kernel on which backend, and why the others have none."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import platform
from collections.abc import Iterable, Mapping

import torch

from hisparse_ops import _cli, registry
from hisparse_ops._version import __version__


def add_parser(commands: argparse._SubParsersAction[_cli.Parser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "info",
        help="ops, backends, and why anything is missing",
        description="Print the table of ops and backends of this installation, and why anything is missing.",
    )
    parser.add_argument(
        "--markdown",
        action="store_true",
        help="print the table alone, as it stands in the README",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """The subcommand."""
    if args.markdown:
        print(markdown(registry.ops().values(), registry.backends()))
        return _cli.EQUAL
    print(environment())
    print()
    print(table(registry.ops().values(), registry.backends()))
    print()
    print(extras())
    return _cli.EQUAL


def environment() -> str:
    """Versions and machine."""
    return (
        f"hisparse-ops {__version__}\n"
        f"Python {platform.python_version()}, torch {torch.__version__},"
        f" {platform.system()} {platform.machine()}, {torch.get_num_threads()} threads"
    )


def table(ops: Iterable[registry.Op], backends: Mapping[str, registry.Backend]) -> str:
    """The op x backend table, and a line about each backend."""
    ops = list(ops)
    width = max(len("op"), *(len(op.name) for op in ops))
    lines = ["  ".join([f"{'op':<{width}}", f"{'family':<10}", *(f"{b:<4}" for b in backends)])]
    for op in ops:
        cells = [
            f"{'yes' if op.name in backend.ops else '-':<{max(4, len(name))}}"
            for name, backend in backends.items()
        ]
        lines.append("  ".join([f"{op.name:<{width}}", f"{op.family:<10}", *cells]))
    lines.append("")
    lines += [_about(backend, len(ops)) for backend in backends.values()]
    return "\n".join(line.rstrip() for line in lines)


def markdown(ops: Iterable[registry.Op], backends: Mapping[str, registry.Backend]) -> str:
    """What the package ships: the table with a link to each op's page and what the op does."""
    lines = [f"| op | | {' | '.join(backends)} |", f"|---|---|{'---|' * len(backends)}"]
    for op in ops:
        keys = (backend.dispatch_key for backend in backends.values())
        cells = [registry.kernel_kinds(key).get(op.name, "") for key in keys]
        what = op.summary.replace("``", "`")
        lines.append(f"| [{op.name}](docs/ops/{op.name}.md) | {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _about(backend: registry.Backend, count: int) -> str:
    parts = [f"{len(backend.ops)} of {count} ops", backend.detail, backend.reason]
    return f"{backend.name:<4}  " + "; ".join(part for part in parts if part)


def extras() -> str:
    """The packages that only the demo needs."""
    lines = []
    for module, package in _cli.EXTRA.items():
        if importlib.util.find_spec(module) is None:
            lines.append(f"  {package:<18} missing; {_cli.INSTALL_EXTRA}")
        else:
            lines.append(f"  {package:<18} {importlib.metadata.version(package)}")
    return "\n".join(["packages of the demo", *lines])
