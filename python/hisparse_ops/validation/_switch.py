"""Turning the value checks on and off, and checking calls that were captured.

While validation is on, every op has one more kernel at ``BackendSelect``, a dispatch key that torch asks before
those of the devices, whoever calls: the functions of this package, ``torch.ops.hisparse``, a compiled graph.
Off, no such kernel is registered, and a call takes the way it takes in a process that never heard of validation.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from hisparse_ops import registry
from hisparse_ops.validation._values import VALIDATORS, ValidationError

_KEY = torch._C.DispatchKey.BackendSelect
_kernels: torch.library.Library | None = None
_recording: Calls | None = None
_warned = False


class validate:
    """Check the values of every op call before it runs, or stop doing so.

    ``validate(True)`` holds for the whole process, all threads and all devices, until ``validate(False)``; as a
    context manager, ``with validate():``, until the block ends. ``HISPARSE_VALIDATE=1`` turns it on at import.

    A value that no healthy program holds raises a :class:`ValidationError` (a ValueError) that names op, argument,
    row, column, value and rule, and the op does not run. What "healthy" means for each argument is in
    ``docs/validation.md``; the ops themselves define a result for any value, on or off.

    It costs time: index tensors are read on the host, which waits for a device. Off, it costs nothing. Turn it on
    or off while no other thread runs an op.
    """

    def __init__(self, enabled: bool = True) -> None:
        self._before = is_validating()
        _set(enabled)

    def __enter__(self) -> validate:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _set(self._before)


def is_validating() -> bool:
    """Whether calls are checked now."""
    return _kernels is not None


def _set(enabled: bool) -> None:
    global _kernels
    if not enabled and _kernels is not None:
        _kernels._destroy()  # type: ignore[no-untyped-call]
        _kernels = None
    elif enabled and _kernels is None:
        _kernels = torch.library.Library("hisparse", "IMPL")  # type: ignore[no-untyped-call]
        for name, op in registry.ops().items():
            kernel = _checked(op)
            _kernels.impl(name, kernel, "BackendSelect", with_keyset=True)  # type: ignore[no-untyped-call]


def _checked(op: registry.Op) -> Callable[..., None]:
    def kernel(keyset: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> None:
        if _has_values(args, kwargs):
            if _recording is not None:
                _recording.add(op.name, args, kwargs)
            if _is_capturing():
                _warn_unless_recorded(op.name)
            else:
                check_values(op.name, *args, **kwargs)
        op.call.redispatch(keyset.remove(_KEY), *args, **kwargs)

    return kernel


def _is_capturing() -> bool:
    """On a CUDA stream; an accelerator that cannot say so must be validated eagerly or through :func:`record`."""
    cuda = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call]


def _has_values(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    def meta(value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return any(meta(item) for item in value)
        return isinstance(value, Tensor) and value.is_meta

    return not any(meta(value) for value in (*args, *kwargs.values()))


def check_values(op: str, /, *args: Any, **kwargs: Any) -> None:
    """Check one call without running it: its metadata as the op does, then its values."""
    registry.ops()[op].check(*args, **kwargs)
    VALIDATORS[op](*args, **kwargs)


@dataclass
class Calls:
    """The op calls of a captured step, to be checked outside the graph: see :func:`record`."""

    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)

    def add(self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.calls.append((op, args, kwargs))

    def check(self) -> None:
        """Check what the tensors of every recorded call hold now, in the order of the calls."""
        for op, args, kwargs in self.calls:
            check_values(op, *args, **kwargs)


@contextmanager
def record() -> Iterator[Calls]:
    """Remember the tensors of every op call in the block, which captures a graph.

    A value cannot be read while a graph is captured, and a replay calls no op. The tensors of a captured step stand
    at fixed addresses, so ``calls.check()`` before or after a replay reads what that replay reads or wrote::

        with hisparse_ops.validate(), hisparse_ops.record() as calls:
            step()  # captured
        graph.replay()
        calls.check()

    The calls hold their tensors; keep them as long as the graph.
    """
    global _recording
    before, _recording = _recording, Calls()
    try:
        with validate():
            yield _recording
    finally:
        _recording = before


def _warn_unless_recorded(op: str) -> None:
    global _warned
    if _recording is None and not _warned:
        _warned = True
        warnings.warn(
            f"hisparse validation cannot read values while a graph is captured: {op} and what follows"
            " is not checked; capture inside hisparse_ops.record()",
            stacklevel=2,
        )


def validate_if_asked() -> None:
    """Obey ``HISPARSE_VALIDATE``; called when the package has defined its ops."""
    asked = os.environ.get("HISPARSE_VALIDATE", "0")
    if asked not in ("", "0", "1"):
        raise RuntimeError(f"HISPARSE_VALIDATE must be 0 or 1, got {asked}")
    if asked == "1":
        validate(True)


__all__ = ["Calls", "ValidationError", "check_values", "is_validating", "record", "validate"]
