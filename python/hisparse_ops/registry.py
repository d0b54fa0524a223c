"""The one place that knows which ops exist, what they promise, and which backend has them.

An op is defined by :func:`define_op` in its family's contract file (``resolver.py``, ``gather.py``,
``transfer.py``, ``invalidate.py``); kernels only *implement* it. Tests, benchmarks and the documentation
table walk :func:`ops`, so an op that lacks a piece fails CI.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

# "DEF": a second owner of the namespace is an error. Module level: the finaliser would deregister.
LIB = torch.library.Library("hisparse", "DEF")  # type: ignore[no-untyped-call]

FAMILIES = ("resolver", "gather", "transfer", "invalidate")


@dataclass
class Op:
    """One ``torch.ops.hisparse.<name>``: its schema and what it promises."""

    name: str
    family: str
    schema: str
    exact: bool
    """Results are compared with the oracle bit for bit (otherwise to a stated tolerance)."""
    graph_safe: bool
    """No sync, no host read of device data, no allocation: may be captured and replayed."""
    function: Callable[..., None] = field(init=False, repr=False)
    check: Callable[..., None] = field(init=False, repr=False)
    call: Any = field(init=False, repr=False)
    """The bound overload: no packet look-up on the hot path."""

    @property
    def mutates(self) -> tuple[str, ...]:
        """Names of the arguments the op writes, from its schema."""
        arguments = self.call._schema.arguments
        return tuple(a.name for a in arguments if a.alias_info and a.alias_info.is_write)

    @property
    def summary(self) -> str:
        """First line of the public docstring."""
        return (self.function.__doc__ or "").strip().split("\n")[0]

    def fake(self, check: Callable[..., None]) -> Callable[..., None]:
        """Register ``check`` (argument checks on metadata; these ops return nothing) as the fake."""
        torch.library.register_fake(f"hisparse::{self.name}", check, lib=LIB)
        self.check = check
        return check

    def public(self, function: Callable[..., None]) -> Callable[..., None]:
        """Record the documented Python function of the op."""
        self.function = function
        return function


_OPS: dict[str, Op] = {}


def define_op(schema: str, *, family: str, exact: bool = True, graph_safe: bool = True) -> Op:
    """Define ``hisparse::<schema>`` and enter it in the registry."""
    name = schema.split("(", 1)[0]
    # Exact strides: kernels honour the strides they are given, and tables are addressed in place.
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
    LIB.define(schema, tags=tags)  # type: ignore[no-untyped-call]
    op = Op(name, family, schema, exact, graph_safe)
    op.call = getattr(torch.ops.hisparse, name).default
    _OPS[name] = op
    return op


def ops() -> dict[str, Op]:
    """All ops by name, in order of definition."""
    return dict(_OPS)


@dataclass(frozen=True)
class Backend:
    """One set of kernels and whether it can be used in this process."""

    name: str
    dispatch_key: str
    ops: tuple[str, ...]
    """Ops that have a kernel registered now."""
    reason: str
    """Why nothing, or not everything, is registered; empty when all is."""
    detail: str = ""


def _registered(dispatch_key: str) -> tuple[str, ...]:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return tuple(name for name in _OPS if has(f"hisparse::{name}", dispatch_key))


def _cpu_backend() -> Backend:
    from hisparse_ops import _native

    found = _registered("CPU")
    if _native.library is None:
        return Backend("cpu", "CPU", found, _native.load_error)
    missing = [name for name in _OPS if name not in found]
    reason = f"no kernel for {', '.join(missing)}" if missing else ""
    detail = f"C++ {_native.library.version()}, {_native.library.cpu_isa()} of " + "/".join(
        _native.library.cpu_isas()
    )
    return Backend("cpu", "CPU", found, reason, detail)


def kernel_kinds(dispatch_key: str) -> dict[str, str]:
    """What this package ships for a device, by op: "C++", "Triton", "SIMT"; an op without a kernel is left out."""
    from hisparse_ops import simt, triton

    if dispatch_key == "CPU":
        return dict.fromkeys(_OPS, "C++")
    kinds = {name: "Triton" for name in _OPS if name in triton.OPS}
    return kinds | {name: "SIMT" for name in _OPS if name in simt.OPS}


def _device_backend(name: str, dispatch_key: str) -> Backend:
    from hisparse_ops import simt, triton

    found = _registered(dispatch_key)
    shipped = kernel_kinds(dispatch_key)
    reasons = []
    if unshipped := [op for op in _OPS if op not in shipped and op not in found]:
        reasons.append(f"no kernel for {', '.join(unshipped)}")
    if any(op not in found for op, kind in shipped.items() if kind == "Triton"):
        reasons.append(triton.why_missing())
    if unbuilt := [op for op, kind in shipped.items() if kind == "SIMT" and op not in found]:
        reasons.append(f"{', '.join(unbuilt)} (SIMT): {simt.status(name)}")
    return Backend(name, dispatch_key, found, "; ".join(reasons))


def backends() -> dict[str, Backend]:
    """Every backend, what it has registered in this process, and why anything is missing."""
    found = (
        _cpu_backend(),
        _device_backend("cuda", "CUDA"),
        _device_backend("npu", "PrivateUse1"),
    )
    return {backend.name: backend for backend in found}


def require(op: str, backend: str) -> None:
    """Raise a RuntimeError that names what is missing unless ``backend`` has ``op``."""
    known = backends()
    if backend not in known:
        raise RuntimeError(f"{op}: backend must be one of {', '.join(known)}, got {backend}")
    if op not in known[backend].ops:
        raise RuntimeError(f"{op}: no {backend} kernel is registered: {known[backend].reason}")
