from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from hisparse_ops.testing.buffers import poisoned
from hisparse_ops.testing.samples import BadArgument, Sample


def _make(gen: torch.Generator, visible: int, gap: int = 0) -> dict[str, Any]:
    strides = (visible + gap, 1)
    return {"table": poisoned((visible + 1, visible), torch.int32, gen=gen, strides=strides)}


def samples(tier: str) -> Iterator[Sample]:
    for visible in (8, 1, 0, 33):
        yield Sample(f"{visible} visible", lambda g, v=visible: _make(g, v))
    yield Sample("gaps", lambda g: _make(g, 7, gap=3))
    if tier == "nightly":
        yield Sample("several threads", lambda g: _make(g, 300))


BAD_ARGUMENTS = [
    BadArgument(
        "dtype",
        lambda a: a.update(table=a["table"].long()),
        "fill_full_visible: table must be int32, got int64",
    ),
    BadArgument(
        "dimension",
        lambda a: a.update(table=a["table"][0]),
        "fill_full_visible: table must be 2-D, got 1-D",
    ),
    BadArgument(
        "not one row more than columns",
        lambda a: a.update(table=a["table"][1:]),
        "fill_full_visible: table must have max_visible + 1 = 9 in dimension 0, got shape (8, 8)",
    ),
    BadArgument(
        "layout",
        lambda a: a.update(table=torch.zeros(8, 9, dtype=torch.int32).t()),
        "fill_full_visible: table must have stride 1 in its last dimension, got strides (1, 9)",
    ),
]
