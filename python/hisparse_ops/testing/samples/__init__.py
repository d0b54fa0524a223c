"""Inputs of every op: one module a stem, shared by precision, graph, bad-argument and benchmark runs.

Each module has

* ``samples(tier)``: an iterator of :class:`Sample`; tier ``"default"`` is a few per property, ``"nightly"`` all;
* ``BAD_ARGUMENTS``: what the op refuses, with the text it refuses it with;
* optionally ``unspecified(args)``: masks, by argument, of the elements that the contract leaves undefined after
  the call with ``args``;
* optionally ``device_unspecified(args)``: the same of the elements that are undefined on devices only, where which of
  several writes to a row is the last is not known.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch


@dataclass(frozen=True)
class Sample:
    """One call of an op: ``make(generator)`` gives its arguments by name."""

    name: str
    make: Callable[[torch.Generator], dict[str, Any]]

    def args(self) -> dict[str, Any]:
        """The arguments, the same bytes every time."""
        seed = zlib.crc32(self.name.encode())
        return self.make(torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class BadArgument:
    """One wrong call: ``change`` edits the arguments of the first sample, ``error`` is the whole text."""

    name: str
    change: Callable[[dict[str, Any]], None]
    error: str
    by_value: bool = False
    """True where only a look at the values (or addresses) tells; fakes and device kernels do not see it."""


def load(op: str) -> ModuleType:
    """The sample module of an op."""
    return importlib.import_module(f"hisparse_ops.testing.samples.{op}")


def samples(op: str, tier: str = "default") -> Iterator[Sample]:
    yield from load(op).samples(tier)


def repeated_rows(name: str, slab: torch.Tensor, rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """A mask of the rows of a written slab that ``rows`` names more than once, if there are any."""
    shape = slab.shape[:-1]
    inside = rows[(rows >= 0) & (rows < shape.numel())].long()
    repeated = torch.bincount(inside.flatten(), minlength=shape.numel()) > 1
    if not repeated.any():
        return {}
    return {name: repeated.view(shape)[..., None].expand(slab.shape)}


def device_masks(op: str, args: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Elements that the contract leaves open, those that it leaves open on devices among them."""
    module = load(op)
    masks: dict[str, torch.Tensor] = {}
    for name in ("unspecified", "device_unspecified"):
        if hasattr(module, name):
            masks |= getattr(module, name)(args)
    return masks
