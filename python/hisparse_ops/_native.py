"""Loads the compiled CPU kernels; without them schemas, fakes and oracles still work."""

from __future__ import annotations

import os
from types import ModuleType

import torch  # noqa: F401  (loads the libraries that the extension links to)

from hisparse_ops import _start

library: ModuleType | None
load_error = ""
try:
    from hisparse_ops import _C as library  # type: ignore[attr-defined,no-redef]
except ImportError as error:
    library = None
    load_error = f"the compiled library hisparse_ops._C cannot be loaded: {error}"


def _require() -> ModuleType:
    if library is None:
        raise RuntimeError(load_error)
    return library


def cpu_isas() -> list[str]:
    """Instruction sets the CPU kernels can use on this machine, slowest first."""
    return list(_require().cpu_isas())


def cpu_isa() -> str:
    """Instruction set the CPU kernels use now."""
    return str(_require().cpu_isa())


def set_cpu_isa(name: str) -> None:
    """Make the CPU kernels use instruction set ``name``; results are the same bit for bit.

    The environment variable ``HISPARSE_CPU_ISA`` does the same at import.
    """
    if name not in cpu_isas():
        raise ValueError(
            f"set_cpu_isa: name must be one of {', '.join(cpu_isas())} on this machine, got {name}"
        )
    _require().set_cpu_isa(name)


isa_error = ""
"""For the command line to say; any other import raises it."""
_forced = os.environ.get("HISPARSE_CPU_ISA")
if _forced and library is not None and _forced not in cpu_isas():
    isa_error = (
        f"HISPARSE_CPU_ISA must be one of {', '.join(cpu_isas())} on this machine, got {_forced}"
    )
    # The command line cannot catch what its own package raises.
    if _start.command() is None:
        raise RuntimeError(isa_error)
