from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hisparse_ops.testing.buffers import buffer, poisoned
from hisparse_ops.testing.samples import BadArgument, Sample


def _make(
    gen: torch.Generator,
    n: int,
    count: int,
    dtype: torch.dtype = torch.int32,
    out_dtype: torch.dtype | None = None,
    stride: int = 1,
    high: int = 2**31 - 1,
) -> dict[str, Any]:
    values = torch.randint(-1, high, (n,), generator=gen)
    return {
        "slots": buffer((n,), dtype, gen=gen, strides=(stride,), values=values),
        "valid_count": buffer((1,), dtype, gen=gen, values=[count]),
        "out": poisoned((n,), out_dtype or dtype, gen=gen, strides=(stride,)),
    }


def _spread(args: dict[str, Any], gen: torch.Generator) -> dict[str, Any]:
    args["out"] = poisoned(args["out"].shape, args["out"].dtype, gen=gen, strides=(2,))
    return args


def samples(tier: str) -> Iterator[Sample]:
    for n, count in ((8, 5), (8, 8), (8, 0), (1, 1), (0, 0), (1025, 700)):
        yield Sample(f"{count} of {n}", partial(_make, n=n, count=count))
    yield Sample("strides that differ", lambda g: _spread(_make(g, 9, 4), g))
    yield Sample("count past the end", lambda g: _make(g, 4, 9))
    yield Sample("negative count", lambda g: _make(g, 4, -3))
    yield Sample("int64", lambda g: _make(g, 9, 4, torch.int64))
    yield Sample("int64 beyond int32", lambda g: _make(g, 9, 7, torch.int64, high=2**40))
    yield Sample("int64 to int32", lambda g: _make(g, 64, 60, torch.int64, torch.int32, high=2**33))
    yield Sample(
        "int32 to int64, strided", lambda g: _make(g, 9, 4, out_dtype=torch.int64, stride=3)
    )


def _shifted(slots: Tensor) -> Tensor:
    return slots.as_strided(slots.shape, slots.stride(), slots.storage_offset() + 1)


BAD_ARGUMENTS = [
    BadArgument(
        "slots dtype",
        lambda a: a.update(slots=a["slots"].float()),
        "pad_slots: slots must be int32 or int64, got float32",
    ),
    BadArgument(
        "slots dimension",
        lambda a: a.update(slots=a["slots"][None]),
        "pad_slots: slots must be 1-D, got 2-D",
    ),
    BadArgument(
        "two counts",
        lambda a: a.update(valid_count=torch.zeros(2, dtype=torch.int32)),
        "pad_slots: valid_count must have length = 1 in dimension 0, got shape (2)",
    ),
    BadArgument(
        "short out",
        lambda a: a.update(out=a["out"][:7]),
        "pad_slots: out must have length = 8 in dimension 0, got shape (7)",
    ),
    BadArgument(
        "overlapping out",
        lambda a: a.update(out=a["out"][:1].expand(8)),
        "pad_slots: out must have row-major strides without overlap, got strides (0)",
    ),
    BadArgument(
        "out one place on",
        lambda a: a.update(out=_shifted(a["slots"])),
        "pad_slots: out must not overlap slots, got shared memory",
        by_value=True,
    ),
]
