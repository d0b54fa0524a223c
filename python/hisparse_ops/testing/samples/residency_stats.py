from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from hisparse_ops.testing.buffers import buffer
from hisparse_ops.testing.samples import BadArgument, Sample


def _make(
    gen: torch.Generator,
    rows: int,
    *,
    resident: bool = True,
    stride: int = 1,
    dtype: torch.dtype = torch.int32,
    high: int = 2049,
) -> dict[str, Any]:
    def counts() -> torch.Tensor:
        values = torch.randint(0, high, (rows,), generator=gen)
        return buffer((rows,), dtype, gen=gen, strides=(stride,), values=values)

    args: dict[str, Any] = {"valid_counts": counts(), "refill_counts": counts()}
    args["stats"] = buffer((2,), torch.int64, gen=gen, strides=(stride,), values=[2**40, -3])
    if resident:
        args["resident_counts"] = counts()
    return args


def samples(tier: str) -> Iterator[Sample]:
    yield Sample("128 rows", lambda g: _make(g, 128))
    yield Sample("no resident counts", lambda g: _make(g, 9, resident=False))
    yield Sample("no rows", lambda g: _make(g, 0))
    yield Sample("int64, strided", lambda g: _make(g, 17, stride=3, dtype=torch.int64))
    yield Sample("sums past int32", lambda g: _make(g, 33, high=2**31 - 1))
    sizes = (1023, 1024, 1025) if tier == "default" else (1, 1023, 1024, 1025, 65535, 65536, 131072)
    for rows in sizes:
        yield Sample(f"{rows} rows", lambda g, n=rows: _make(g, n))


BAD_ARGUMENTS = [
    BadArgument(
        "valid dtype",
        lambda a: a.update(valid_counts=a["valid_counts"].float()),
        "residency_stats: valid_counts must be int32 or int64, got float32",
    ),
    BadArgument(
        "refill length",
        lambda a: a.update(refill_counts=a["refill_counts"][1:]),
        "residency_stats: refill_counts must have rows = 128 in dimension 0, got shape (127)",
    ),
    BadArgument(
        "resident dimension",
        lambda a: a.update(resident_counts=a["resident_counts"][None]),
        "residency_stats: resident_counts must be 1-D, got 2-D",
    ),
    BadArgument(
        "stats dtype",
        lambda a: a.update(stats=a["stats"].int()),
        "residency_stats: stats must be int64, got int32",
    ),
    BadArgument(
        "stats length",
        lambda a: a.update(stats=torch.zeros(3, dtype=torch.int64)),
        "residency_stats: stats must have length = 2 in dimension 0, got shape (3)",
    ),
]
