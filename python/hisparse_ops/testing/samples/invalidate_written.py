from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hisparse_ops.testing.samples import BadArgument, Sample
from hisparse_ops.testing.samples._owners import (
    EDGES,
    INT32_MAX,
    bad_owners,
    id_list,
    in_owners,
    owners,
    spans,
)


def _make(
    gen: torch.Generator,
    shapes: Sequence[tuple[int, int]] = ((4, 20), (4, 33)),
    *,
    state_rows: Sequence[int] = (2, 0, 3),
    requests: Sequence[int] | None = None,
    slots: Sequence[int] | Tensor | None = None,
    n: int = 6,
    values: Tensor | None = None,
    ids: torch.dtype = torch.int32,
    slot_ids: torch.dtype | None = None,
    stride: int = 1,
    row_gap: int = 0,
) -> dict[str, Any]:
    if slots is None:
        slots = torch.randint(-1, 40, (n,), generator=gen)
    if requests is None:
        requests = torch.randint(0, len(state_rows), (len(slots),), generator=gen).tolist()
    return {
        "owners": owners(gen, shapes, values, row_gap),
        "request_state_indices": id_list(gen, state_rows, ids, stride),
        "request_ids": id_list(gen, requests, ids, stride),
        "slots": id_list(gen, slots, slot_ids or ids, stride),
    }


def _one_state(gen: torch.Generator, slots: Tensor, hot_size: int = 80) -> dict[str, Any]:
    """One request writes ``slots``; its owners are those, their neighbours and rows far away."""
    near = torch.cat([slots - 1, slots, slots + 1, torch.tensor([-1, 0, 10**6, INT32_MAX])])
    values = near.clamp(-1, INT32_MAX)
    return _make(
        gen,
        [(3, hot_size)],
        state_rows=[1],
        requests=[0] * len(slots),
        slots=slots,
        values=values,
        slot_ids=torch.int64,
    )


def samples(tier: str) -> Iterator[Sample]:
    yield Sample("random", lambda g: _make(g))
    yield Sample("int64", lambda g: _make(g, ids=torch.int64))
    yield Sample("int32 requests, int64 slots", lambda g: _make(g, slot_ids=torch.int64))
    yield Sample("strided", lambda g: _make(g, stride=3, row_gap=5))
    yield Sample("hot sizes", lambda g: _make(g, [(4, size) for size in EDGES], n=12))
    yield Sample(
        "every copy, only there",
        lambda g: _make(
            g,
            [(4, 12), (4, 40)],
            state_rows=[0, 1, -1, 9],
            requests=[-2, -1, 0, 1, 2, 3, 4, 5, 0, 1],
            slots=[7, 7, 7, -1, 7, 7, 7, 7, 8, 9],
            values=torch.tensor([7, 7, 7, 8, 9, -1]),
        ),
    )
    yield Sample(
        "tables of different heights",
        lambda g: _make(g, [(1, 30), (6, 30), (0, 30), (3, 30)], state_rows=[5, 0, 2], n=20),
    )
    yield Sample("two requests, one state", lambda g: _make(g, state_rows=[1, 1, 1], n=9))
    yield Sample(
        "int64 ids beyond int32",
        lambda g: _make(
            g,
            state_rows=[2**32 + 1, 1, -(2**32)],
            requests=[0, 1, 2**32 + 1, -(2**32) + 1, 2, 1],
            slots=[7, 2**32 + 7, 7, 7, 7, -(2**32) + 8],
            values=torch.tensor([7, 8]),
            ids=torch.int64,
        ),
    )
    yield Sample(
        "int32 limits", lambda g: _one_state(g, torch.tensor([0, INT32_MAX, 2**31, 2**32]))
    )
    yield Sample("one run of rows", lambda g: _one_state(g, spans(1000, 1, 20, 1)))
    yield Sample("descending rows", lambda g: _one_state(g, spans(1000, 1, 6, 1).flip(0)))
    for count in (6, 7, 30):
        yield Sample(f"{count} single rows", lambda g, n=count: _one_state(g, spans(64, n, 1, 97)))
        yield Sample(f"{count} runs", lambda g, n=count: _one_state(g, spans(3, n, 5, 64)))
    yield Sample("12 pages", lambda g: _one_state(g, spans(128, 12, 64, 256), 160))
    yield Sample("12 runs across pages", lambda g: _one_state(g, spans(100, 12, 64, 256), 160))
    yield Sample("all hot slots hit", lambda g: _make(g, slots=[5, 5], values=torch.tensor([5])))
    yield Sample("no slot held", lambda g: _make(g, values=torch.tensor([-1, 900])))
    yield Sample("padding tokens", lambda g: _make(g, requests=[-1] * 4, slots=[1, 2, 3, 4]))
    yield Sample("no tokens", lambda g: _make(g, n=0))
    yield Sample("no requests", lambda g: _make(g, state_rows=[], requests=[0, -1], slots=[1, 2]))
    yield Sample("no tables", lambda g: _make(g, []))
    yield Sample("empty tables", lambda g: _make(g, [(0, 20), (4, 0), (0, 0)]))
    # More than a thread's worth of bytes.
    yield Sample("shared out", lambda g: _make(g, [(4, 4096)] * 4, values=torch.arange(-1, 400)))
    if tier == "nightly":
        yield from _product()


def _product() -> Iterator[Sample]:
    for size, n, ids, gap in itertools.product(
        EDGES, (1, 5, 40), (torch.int32, torch.int64), (0, 3)
    ):
        yield Sample(
            f"hot size {size}, {n} tokens, {ids}, gap {gap}",
            lambda g, size=size, n=n, ids=ids, gap=gap: _make(
                g, [(4, size), (3, size + 1)], n=n, ids=ids, row_gap=gap
            ),
        )
    for count, rows, step in itertools.product(
        (1, 6, 7, 9, 40), (1, 2, 63, 64, 65), (66, 128, 1000)
    ):
        yield Sample(
            f"{count} x {rows} rows, {step} apart",
            lambda g, c=count, r=rows, s=step: _one_state(g, spans(5, c, r, s)),
        )


_OP = "invalidate_written"
BAD_ARGUMENTS = [
    *bad_owners(_OP),
    BadArgument(
        "request_state_indices dtype",
        lambda a: a.update(request_state_indices=a["request_state_indices"].short()),
        "invalidate_written: request_state_indices must be int32 or int64, got int16",
    ),
    BadArgument(
        "request_ids dimension",
        lambda a: a.update(request_ids=a["request_ids"][None]),
        "invalidate_written: request_ids must be 1-D, got 2-D",
    ),
    BadArgument(
        "slots dtype",
        lambda a: a.update(slots=a["slots"].double()),
        "invalidate_written: slots must be int32 or int64, got float64",
    ),
    BadArgument(
        "slots length",
        lambda a: a.update(slots=a["slots"][:5]),
        "invalidate_written: slots must have tokens = 6 in dimension 0, got shape (5)",
    ),
    *(in_owners(_OP, name) for name in ("request_state_indices", "request_ids", "slots")),
]
