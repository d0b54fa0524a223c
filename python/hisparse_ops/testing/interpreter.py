"""Triton kernels run by Triton's interpreter on CPU tensors: how the device kernels are tested without a device.

Triton decides when a function is decorated how it will run, those of its own library included: import this before
anything imports Triton (torch's compiler does), or set ``TRITON_INTERPRET=1`` for the whole process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

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
    importlib.import_module(f"{kernels.__name__}.{_module.name}")
if _before is None:
    del os.environ["TRITON_INTERPRET"]
else:
    os.environ["TRITON_INTERPRET"] = _before

import triton.language as _language  # noqa: E402
from triton.runtime import interpreter as _interpreter  # noqa: E402

for _function in (_language.zeros, kernels._rows.copy_lanes):  # type: ignore[attr-defined]
    if not isinstance(_function, _interpreter.InterpretedFunction):
        raise ImportError(
            "hisparse_ops.testing.interpreter must be imported before triton, or TRITON_INTERPRET=1 be set"
        )

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
