from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from benchmarks import native
from benchmarks.measure import Contender, on_copy
from hisparse_ops.testing.buffers import clone_args


def _keys(states: Tensor, rows: Tensor) -> Tensor:
    """One number for a row of a state."""
    return states.long() << 32 | rows.long()


def _forget(found: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., None]:
    """The op with torch, given how owners are looked up among the written rows."""

    def with_torch(
        owners: list[Tensor], request_state_indices: Tensor, request_ids: Tensor, slots: Tensor
    ) -> None:
        states = request_state_indices[request_ids]
        written = _keys(states, slots).sort()[0]
        touched = states.unique()
        for owner in owners:
            rows = owner[touched]
            keys = _keys(touched[:, None].expand_as(rows), rows)
            owner[touched] = rows.masked_fill(found(written, keys), -1)

    return with_torch


def _searched(written: Tensor, keys: Tensor) -> Tensor:
    at = torch.searchsorted(written, keys).clamp(max=len(written) - 1)
    return written[at] == keys


def contenders(args: dict[str, Any]) -> list[Contender]:
    mine = clone_args(args)
    states = mine["request_state_indices"][mine["request_ids"]].unique()
    pieces = torch.tensor(
        [owner[s].data_ptr() for owner in mine["owners"] for s in states.tolist()]
    )
    words = mine["owners"][0].shape[1]
    read = native.library("limits").read_words
    arguments = (c_void_p(pieces.data_ptr()), c_int64(len(pieces)), c_int64(words))
    keep = (mine, pieces)
    return [
        on_copy("invalidate_written", "torch searchsorted", args, _forget(_searched)),
        on_copy(
            "invalidate_written",
            "torch isin",
            args,
            _forget(lambda written, keys: torch.isin(keys, written)),
        ),
        Contender("owners read once", lambda: (read(*arguments), keep)[0], is_limit=True),
    ]
