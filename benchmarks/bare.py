"""Calls of ops that do nothing: what the dispatcher asks of every call with such arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

import hisparse_ops
from benchmarks import native
from benchmarks.measure import Args, Contender
from hisparse_ops.testing import samples
from hisparse_ops.testing.buffers import clone_args

_LIB = torch.library.Library("hisparse_bare", "DEF")

_EMPTY = {
    "fill_full_visible": "0 visible",
    "pad_slots": "0 of 0",
    "gather_plan": "no rows",
    "copy_row_spans": "no spans",
    "copy_pages": "no pairs",
}
_NO_WORK = ("no rows", "no tokens", "no pages", "no slots", "no states")


@functools.cache
def bare_op(op: str) -> Callable[..., Any]:
    """An op with the schema of ``op`` and no work at all."""
    _LIB.define(hisparse_ops.ops()[op].schema)
    native.library("bare_ops").implement_bare(op.encode())
    return getattr(torch.ops.hisparse_bare, op).default


def bare_call(op: str, args: Args) -> Contender:
    mine = clone_args(args)
    call = bare_op(op)
    return Contender("bare call", lambda: call(**mine), is_limit=True)


def empty_args(op: str) -> Args:
    """Arguments of a call that has nothing to do."""
    for sample in samples.samples(op):
        if sample.name == _EMPTY.get(op) or (op not in _EMPTY and sample.name.startswith(_NO_WORK)):
            return sample.args()
    raise LookupError(f"{op} has no sample without work")
