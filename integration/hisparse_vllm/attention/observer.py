"""Who wants to see the rows that attention writes and reads: nobody but tests."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Observer(Protocol):
    """Sees every row with the host slot it belongs to, ``block * block_size + offset`` of the request's own table."""

    def wrote(self, layer: str, slots: Tensor, rows: Tensor) -> None: ...

    def read(self, layer: str, slots: Tensor, rows: Tensor, how: str) -> None: ...


_observer: Observer | None = None


def observe(observer: Observer | None) -> None:
    """Show rows to ``observer`` from now on; None shows them to nobody."""
    global _observer
    _observer = observer


def observing() -> Observer | None:
    return _observer


def wrote_keys(layer: str, slots: Tensor, rows: Tensor) -> None:
    if _observer is not None:
        _observer.wrote(layer, slots, rows)


def read_keys(layer: str, slots: Tensor, rows: Tensor) -> None:
    if _observer is not None:
        _observer.read(layer, slots, rows, "indexer")
