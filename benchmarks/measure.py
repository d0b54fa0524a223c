"""Contenders of one case, timed side by side in one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import hisparse_ops
from hisparse_ops.testing.buffers import clone_args, tensors

Args = dict[str, Any]
_CALLS = 3


def _nothing() -> None:
    pass


@dataclass
class Contender:
    """One way to do the work of a case."""

    name: str
    call: Callable[[], Any]
    before: Callable[[], Any] = _nothing
    """Puts everything back; not timed."""
    result: Callable[[], Mapping[str, Tensor]] | None = None
    """What the call wrote, to be held against the oracle; None for a physical limit."""
    is_limit: bool = False


@dataclass
class Times:
    """Seconds of a contender's calls, sorted."""

    name: str
    is_limit: bool
    seconds: Tensor = field(repr=False)

    def at(self, quantile: float) -> float:
        return float(self.seconds.quantile(quantile))

    @property
    def median(self) -> float:
        return self.at(0.5)


def written(op: str, args: Args) -> dict[str, Tensor]:
    """The tensors of a call that the op writes."""
    mutates = hisparse_ops.ops()[op].mutates
    return {name: t for name, t in tensors(args) if name.split("[")[0] in mutates}


_STATEFUL = ("resolver", "invalidate")
"""Families whose second call with the same arguments does other work than the first."""


def on_copy(op: str, name: str, args: Args, function: Callable[..., Any]) -> Contender:
    """``function(**args)`` on a copy of the arguments of its own."""
    mine = clone_args(args)
    outputs = written(op, mine)
    call = lambda: function(**mine)  # noqa: E731
    if hisparse_ops.ops()[op].family not in _STATEFUL:
        return Contender(name, call, result=lambda: outputs)
    pristine = {n: t.clone() for n, t in outputs.items()}

    def restore() -> None:
        for n, t in outputs.items():
            t.copy_(pristine[n])

    return Contender(name, call, restore, lambda: outputs)


class Evictor:
    """Reads more memory than the caches hold, so that the next call finds nothing there."""

    def __init__(self, megabytes: int = 128) -> None:
        self._memory = torch.zeros(megabytes << 18, dtype=torch.int32)

    def __call__(self) -> None:
        self._memory.sum()


def measure(
    contenders: Sequence[Contender],
    repeats: int,
    evict: Callable[[], None] | None = None,
) -> list[Times]:
    """Seconds of every contender. They take turns, so that what disturbs one disturbs all.

    A turn is one call that is not timed and three that are: the first wakes threads and finds in the caches what the
    contender before left there. With ``evict`` every timed call finds them empty.
    """
    seconds: list[list[float]] = [[] for _ in contenders]
    for _ in range(-(-repeats // _CALLS)):
        for contender, mine in zip(contenders, seconds, strict=True):
            for call in range(1 + _CALLS):
                contender.before()
                if evict is not None:
                    evict()
                start = time.perf_counter()
                contender.call()
                passed = time.perf_counter() - start
                if call > 0:
                    mine.append(passed)
    return [
        Times(c.name, c.is_limit, torch.tensor(s, dtype=torch.float64).sort()[0])
        for c, s in zip(contenders, seconds, strict=True)
    ]


def wrong_results(op: str, args: Args, contenders: Sequence[Contender]) -> list[str]:
    """Names of contenders that differ from the oracle in anything they write."""
    from hisparse_ops import reference

    expected = clone_args(args)
    reference.load(op)(**expected)
    wanted = written(op, expected)
    wrong = []
    for contender in contenders:
        if contender.result is None:
            continue
        contender.before()
        contender.call()
        found = contender.result()
        if any(not same(op, n, args, wanted, found[n]) for n in wanted):
            wrong.append(contender.name)
    return wrong


def same(op: str, name: str, args: Args, wanted: Mapping[str, Tensor], found: Tensor) -> bool:
    """Bit for bit; what a plan holds past its counts is nobody's business."""
    expected = wanted[name]
    if op == "resolve" and name in ("refill_host_rows", "refill_hot_rows"):
        used = torch.arange(expected.shape[1]) < wanted["refill_counts"][:, None]
        expected, found = expected[used], found[used]
    return torch.equal(
        expected.contiguous().view(torch.uint8), found.contiguous().view(torch.uint8)
    )
