"""Triton kernels run by Triton's interpreter on CPU tensors: how the device kernels are tested without a device.

Import this before anything imports a kernel: Triton decides when it decorates a kernel how it will run.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_KERNELS = "hisparse_ops.triton.kernels"
if any(name.startswith(f"{_KERNELS}.") for name in sys.modules):
    raise ImportError(f"import hisparse_ops.testing.interpreter before {_KERNELS}")
_before = os.environ.get("TRITON_INTERPRET")
os.environ["TRITON_INTERPRET"] = "1"

import importlib  # noqa: E402
import pkgutil  # noqa: E402

import numpy as np  # noqa: E402

from hisparse_ops.registry import ops  # noqa: E402
from hisparse_ops.triton import OPS, _launch, kernels, launcher  # noqa: E402

# The interpreter imports this at its first call, and it must see the same setting.
importlib.import_module("triton.experimental.gluon")
for _module in pkgutil.iter_modules(kernels.__path__):
    importlib.import_module(f"{_KERNELS}.{_module.name}")
if _before is None:
    del os.environ["TRITON_INTERPRET"]
else:
    os.environ["TRITON_INTERPRET"] = _before

from triton.runtime import interpreter as _interpreter  # noqa: E402

# int32 overflow and device_assert raise. The options are frozen, and there is no public switch.
object.__setattr__(_interpreter.interpreter_builder.options, "debug", True)


@dataclass
class Launches:
    """What a call started: kernels by name, and with how many programs."""

    kernels: list[tuple[str, int]] = field(default_factory=list)
    specialisations: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)


@contextlib.contextmanager
def recorded(cores: int = 3) -> Iterator[Launches]:
    """Interpret with ``cores`` programs at most, and record the launches."""
    launches = Launches()
    start, before = _launch.launcher, _launch.interpreted_cores

    def record(
        kernel: Any, programs: int, args: tuple[Any, ...], constants: dict[str, Any]
    ) -> None:
        launches.kernels.append((kernel.fn.__name__, programs))
        launches.specialisations.append((kernel, args, constants))
        start(kernel, programs, args, constants)

    _launch.launcher, _launch.interpreted_cores = record, cores
    _launch.cores.cache_clear()
    try:
        yield launches
    finally:
        _launch.launcher, _launch.interpreted_cores = start, before
        _launch.cores.cache_clear()


def call(op: str, args: dict[str, Any], cores: int = 3) -> Launches:
    """What the op does on a device: its checks, then its launcher."""
    if op not in OPS:
        raise LookupError(f"{op} has no Triton kernel")
    with recorded(cores) as launches, np.errstate(all="ignore"):
        ops()[op].check(**args)
        launcher(op)(**args)
    return launches
