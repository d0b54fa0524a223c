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
    slots: Sequence[int] | Tensor = (-1, 3, 4, 5, 20, 21),
    values: Tensor | None = None,
    ids: torch.dtype = torch.int32,
    slot_ids: torch.dtype | None = None,
    stride: int = 1,
    row_gap: int = 0,
) -> dict[str, Any]:
    return {
        "owners": owners(gen, shapes, values, row_gap),
        "state_rows": id_list(gen, state_rows, ids, stride),
        "sorted_slots": id_list(gen, slots, slot_ids or ids, stride),
    }


def _near(
    gen: torch.Generator,
    slots: Tensor,
    shapes: Sequence[tuple[int, int]] = ((3, 80),),
    state_rows: Sequence[int] = (1, 2),
) -> dict[str, Any]:
    """Owners are the recycled rows, their neighbours and rows far away."""
    near = torch.cat([slots - 1, slots, slots + 1, torch.tensor([-1, 0, 10**6, INT32_MAX])])
    values = near.clamp(-1, INT32_MAX)
    return _make(
        gen, shapes, state_rows=state_rows, slots=slots, values=values, slot_ids=torch.int64
    )


def _row_behind(gen: torch.Generator) -> dict[str, Any]:
    """The row behind the table's last one holds the slots too: it is another's."""
    args = _make(gen, [(4, 40)], state_rows=[3, 2], slots=range(40))
    args["owners"] = [args["owners"][0][:3]]
    return args


def samples(tier: str) -> Iterator[Sample]:
    yield Sample("two runs", lambda g: _make(g))
    yield Sample("int64", lambda g: _make(g, ids=torch.int64))
    yield Sample("int32 states, int64 slots", lambda g: _make(g, slot_ids=torch.int64))
    yield Sample("strided", lambda g: _make(g, stride=3, row_gap=5))
    yield Sample("hot sizes", lambda g: _make(g, [(4, size) for size in EDGES]))
    yield Sample(
        "hot sizes, many slots",
        lambda g: _near(g, spans(9, 20, 1, 70), [(3, size) for size in EDGES]),
    )
    yield Sample(
        "state rows outside a table",
        lambda g: _make(
            g, [(1, 30), (6, 30), (0, 30)], state_rows=[5, -1, 0, 6, INT32_MAX, -(2**31)]
        ),
    )
    yield Sample("a row behind the table", _row_behind)
    yield Sample(
        "long runs with a gap, strided",
        lambda g: _make(
            g,
            slots=[i for i in range(1, 140) if i not in (17, 60, 61)],
            values=torch.arange(150),
            stride=2,
        ),
    )
    yield Sample("state rows repeated", lambda g: _make(g, state_rows=[1, 1, 3, 1, 3]))
    yield Sample("slots repeated", lambda g: _make(g, slots=[-1, -1, 5, 5, 5, 6, 8, 8]))
    yield Sample(
        "int64 ids beyond int32",
        lambda g: _make(
            g,
            state_rows=[2**32 + 1, 0, -(2**32) + 2],
            slots=[-(2**32) + 9, 7, 2**32 + 8],
            values=torch.tensor([7, 8, 9]),
            ids=torch.int64,
        ),
    )
    yield Sample("int32 limits", lambda g: _near(g, torch.tensor([-1, 0, INT32_MAX, 2**31, 2**32])))
    yield Sample("one page", lambda g: _near(g, spans(640, 1, 64, 64)))
    for count in (6, 7, 30):
        yield Sample(f"{count} single rows", lambda g, n=count: _near(g, spans(64, n, 1, 97)))
        yield Sample(f"{count} runs", lambda g, n=count: _near(g, spans(3, n, 5, 64)))
    yield Sample("12 pages", lambda g: _near(g, spans(128, 12, 64, 256), [(3, 160)]))
    yield Sample("12 runs across pages", lambda g: _near(g, spans(100, 12, 64, 256), [(3, 160)]))
    yield Sample(
        "pages out of order", lambda g: _near(g, spans(128, 12, 64, 256).flip(0), [(3, 160)])
    )
    yield Sample("no order", lambda g: _near(g, torch.randperm(900, generator=g)[:40]))
    yield Sample("all hot slots hit", lambda g: _make(g, slots=[5], values=torch.tensor([5])))
    yield Sample("only -1", lambda g: _make(g, slots=[-1, -1]))
    yield Sample("no slots", lambda g: _make(g, slots=[]))
    yield Sample("no state rows", lambda g: _make(g, state_rows=[]))
    yield Sample("no tables", lambda g: _make(g, []))
    yield Sample("empty tables", lambda g: _make(g, [(0, 20), (4, 0), (0, 0)]))
    # More than a thread's worth of bytes.
    yield Sample("shared out", lambda g: _near(g, spans(64, 30, 64, 128), [(4, 4096)] * 4))
    if tier == "nightly":
        yield from _product()


def _product() -> Iterator[Sample]:
    for size, ids, gap in itertools.product(EDGES, (torch.int32, torch.int64), (0, 3)):
        yield Sample(
            f"hot size {size}, {ids}, gap {gap}",
            lambda g, size=size, ids=ids, gap=gap: _make(
                g, [(4, size), (3, size + 1)], ids=ids, row_gap=gap
            ),
        )
    for count, rows, step in itertools.product(
        (1, 6, 7, 9, 40), (1, 2, 63, 64, 65), (66, 128, 1000)
    ):
        yield Sample(
            f"{count} x {rows} rows, {step} apart",
            lambda g, c=count, r=rows, s=step: _near(g, spans(5, c, r, s)),
        )


_OP = "invalidate_recycled"
BAD_ARGUMENTS = [
    *bad_owners(_OP),
    BadArgument(
        "state_rows dtype",
        lambda a: a.update(state_rows=a["state_rows"].short()),
        "invalidate_recycled: state_rows must be int32 or int64, got int16",
    ),
    BadArgument(
        "state_rows dimension",
        lambda a: a.update(state_rows=a["state_rows"][None]),
        "invalidate_recycled: state_rows must be 1-D, got 2-D",
    ),
    BadArgument(
        "sorted_slots dtype",
        lambda a: a.update(sorted_slots=a["sorted_slots"].float()),
        "invalidate_recycled: sorted_slots must be int32 or int64, got float32",
    ),
    BadArgument(
        "sorted_slots dimension",
        lambda a: a.update(sorted_slots=a["sorted_slots"].view(2, 3)),
        "invalidate_recycled: sorted_slots must be 1-D, got 2-D",
    ),
    *(in_owners(_OP, name) for name in ("state_rows", "sorted_slots")),
]
