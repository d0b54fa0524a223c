from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from hisparse_ops.testing.buffers import buffer
from hisparse_ops.testing.samples import BadArgument, Sample


def _make(
    gen: torch.Generator,
    rows: Sequence[int],
    *,
    states: int = 4,
    hot_size: int = 9,
    gap: int = 0,
    ids: torch.dtype = torch.int32,
) -> dict[str, Any]:
    strides = (hot_size + gap, 1)
    return {
        "hot_owner": buffer((states, hot_size), torch.int32, gen=gen, strides=strides),
        "lru_slots": buffer((states, hot_size), torch.int16, gen=gen, strides=strides),
        "state_rows": buffer((len(rows),), ids, gen=gen, strides=(1 + gap,), values=rows),
    }


def samples(tier: str) -> Iterator[Sample]:
    yield Sample("two rows", lambda g: _make(g, [2, 0]))
    yield Sample("none", lambda g: _make(g, []))
    yield Sample("outside and repeated", lambda g: _make(g, [-1, 3, 4, 3, 2**31 - 1, -(2**31)]))
    yield Sample("int64, gaps", lambda g: _make(g, [1, 2**40, -1, 0], gap=5, ids=torch.int64))
    yield Sample("no slots", lambda g: _make(g, [0], hot_size=0))
    yield Sample("no states", lambda g: _make(g, [0], states=0))
    if tier == "nightly":
        for hot_size in (1, 31, 32, 33, 10240, 32768):
            yield Sample(f"hot size {hot_size}", lambda g, h=hot_size: _make(g, [3, 1], hot_size=h))


def _aliased(args: dict[str, Any]) -> None:
    args["lru_slots"] = args["hot_owner"].view(torch.int16)[:, :9]


def _ids_in(table: str) -> Callable[[dict[str, Any]], None]:
    def change(args: dict[str, Any]) -> None:
        args["state_rows"] = args[table].view(torch.int32)[0]

    return change


BAD_ARGUMENTS = [
    BadArgument(
        "owner dtype",
        lambda a: a.update(hot_owner=a["hot_owner"].long()),
        "reset_requests: hot_owner must be int32, got int64",
    ),
    BadArgument(
        "owner rows overlap",
        lambda a: a.update(hot_owner=a["hot_owner"][:1].expand(4, 9)),
        "reset_requests: hot_owner must have row-major strides without overlap, got strides (0, 1)",
    ),
    BadArgument(
        "lru dtype",
        lambda a: a.update(lru_slots=a["lru_slots"].int()),
        "reset_requests: lru_slots must be int16, got int32",
    ),
    BadArgument(
        "lru states",
        lambda a: a.update(lru_slots=a["lru_slots"][1:]),
        "reset_requests: lru_slots must have states = 4 in dimension 0, got shape (3, 9)",
    ),
    BadArgument(
        "lru slots",
        lambda a: a.update(lru_slots=a["lru_slots"][:, 1:]),
        "reset_requests: lru_slots must have hot_size = 9 in dimension 1, got shape (4, 8)",
    ),
    BadArgument(
        "slots past int16",
        lambda a: a.update(
            hot_owner=torch.zeros(1, 32769, dtype=torch.int32),
            lru_slots=torch.zeros(1, 32769, dtype=torch.int16),
        ),
        "reset_requests: hot_owner must have at most 32768 slots, got 32769",
    ),
    BadArgument(
        "state rows dtype",
        lambda a: a.update(state_rows=a["state_rows"].short()),
        "reset_requests: state_rows must be int32 or int64, got int16",
    ),
    BadArgument(
        "state rows dimension",
        lambda a: a.update(state_rows=a["state_rows"][None]),
        "reset_requests: state_rows must be 1-D, got 2-D",
    ),
    BadArgument(
        "tables share memory",
        _aliased,
        "reset_requests: lru_slots must not overlap hot_owner, got shared memory",
        by_value=True,
    ),
    BadArgument(
        "ids inside the owners",
        _ids_in("hot_owner"),
        "reset_requests: state_rows must not overlap hot_owner, got shared memory",
        by_value=True,
    ),
    BadArgument(
        "ids inside the LRU",
        lambda a: a.update(
            lru_slots=(lru := torch.zeros(4, 10, dtype=torch.int16))[:, :9],
            state_rows=lru.view(torch.int32)[0],
        ),
        "reset_requests: state_rows must not overlap lru_slots, got shared memory",
        by_value=True,
    ),
]
