"""The resolver's adapter for Ascend 950: a torch library that hands the operands to ACLNN."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from hisparse_ops.simt import _launch

LIBRARY = "libhisparse_ascend950.so"
VARIABLE = "HISPARSE_ASCEND950_LIBRARY"
PACKAGE = "ascend950_opp"
"""Where build.sh installs the ACLNN op, beside the adapter."""

USER_UB_BYTES = 216 << 10
"""Unified buffer that a kernel may ask for: of 256 KiB, 8 are the system's and at least 32 a data cache."""


def path() -> Path:
    """Where the adapter is looked for."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else Path(__file__).parents[1] / LIBRARY


def load(file: Path) -> Any:
    """Load the adapter; returns its op."""
    _find_package(file.parent / PACKAGE)
    torch.ops.load_library(str(file))  # type: ignore[no-untyped-call]
    return torch.ops.hisparse_ascend950.resolve.default


def _find_package(package: Path) -> None:
    """Add the op's package to where torch_npu looks for ACLNN ops, unless it is there."""
    known = [p for p in os.environ.get("ASCEND_CUSTOM_OPP_PATH", "").split(":") if p]
    for vendor in sorted(package.glob("vendors/*")):
        if str(vendor) not in known:
            known.insert(0, str(vendor))
    if known:
        os.environ["ASCEND_CUSTOM_OPP_PATH"] = ":".join(known)


def launcher(adapter: Any) -> Any:
    """``hisparse::resolve`` for NPU tensors."""

    def resolve(*positional: Any, **keywords: Any) -> None:
        args = _launch.by_name(positional, keywords)
        _launch.check(args)
        if args["topk_indices"].shape[0] == 0:
            return
        numbers = _launch.sizes(args)
        _launch.check_budget(numbers, USER_UB_BYTES)
        operands = [args.get(name) for name in _launch.OPERANDS]
        adapter(*operands, [numbers[name] for name in _launch.SIZES])

    return resolve
