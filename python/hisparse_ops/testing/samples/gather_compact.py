from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from hisparse_ops.testing.buffers import buffer
from hisparse_ops.testing.samples import BadArgument, Sample, repeated_rows
from hisparse_ops.testing.samples._gather import WIDTHS, caches, grid, hot_bytes, plan


def _make(
    gen: torch.Generator,
    rows: int = 3,
    top_k: int = 5,
    *,
    counts: Sequence[int] | None = None,
    ids: torch.dtype = torch.int32,
    layout: str = "contiguous",
    **cache: Any,
) -> dict[str, Any]:
    args = caches(gen, **cache)
    args |= plan(gen, args, rows, top_k, ids, layout)
    if counts is None:
        counts = torch.randint(0, top_k + 1, (rows,), generator=gen).tolist()
    stride = 1 if layout == "contiguous" else 3
    args["counts"] = buffer((rows,), ids, gen=gen, strides=(stride,), values=counts)
    return args


def _exact(
    gen: torch.Generator,
    entries: Sequence[tuple[int, int]],
    ids: torch.dtype = torch.int64,
    **cache: Any,
) -> dict[str, Any]:
    """One row of the given (host row, hot row) entries."""
    args = caches(gen, row_bytes=16, **cache)
    host_rows, hot_rows = torch.tensor(entries).T
    args["host_rows"] = grid(gen, host_rows[None], ids)
    args["hot_rows"] = grid(gen, hot_rows[None], ids)
    args["counts"] = buffer((1,), ids, gen=gen, values=[len(entries)])
    return args


# 24 host rows, 20 hot rows.
_SKIPPED = [(-1, 3), (-7, 4), (5, -1), (6, 20), (7, 21), (-1, -1), (24, -1), (24, 20)]
_INT32 = [(2**31 - 1, 1), (-(2**31), 2), (3, 2**31 - 1), (4, -(2**31))]
_INT64 = [
    (2**32 + 5, 1),
    (2**32, 2),
    (6, 2**32 + 3),
    (-(2**32) + 7, 4),
    (8, -(2**32) + 5),
    (2**62, 6),
]


def _with_hot_ids_in_columns(gen: torch.Generator) -> dict[str, Any]:
    args = _make(gen)
    args["hot_rows"] = grid(gen, args["hot_rows"], layout="columns")
    return args


def samples(tier: str) -> Iterator[Sample]:
    yield Sample("random", lambda g: _make(g))
    for width in WIDTHS:
        yield Sample(f"{width}-byte rows", lambda g, w=width: _make(g, row_bytes=w))
    yield Sample("int64 ids", lambda g: _make(g, ids=torch.int64))
    yield Sample("strided ids", lambda g: _make(g, layout="strided"))
    yield Sample("ids with strides of their own", _with_hot_ids_in_columns)
    yield Sample("column-major int64 ids", lambda g: _make(g, layout="columns", ids=torch.int64))
    yield Sample(
        "counts outside [0, top_k]",
        lambda g: _make(g, rows=5, counts=[-1, 9, 0, -(2**31), 2**31 - 1]),
    )
    yield Sample(
        "int64 counts outside [0, top_k]",
        lambda g: _make(g, counts=[2**32 + 1, -(2**32) + 2, 3], ids=torch.int64),
    )
    yield Sample("page gap", lambda g: _make(g, page_gap=1000))
    yield Sample("row gap, odd offset", lambda g: _make(g, row_gap=3, page_gap=5, offset=1))
    yield Sample("paged host cache", lambda g: _make(g, host_shape=(6, 4), page_gap=64))
    yield Sample("flat hot cache", lambda g: _make(g, hot_shape=(20,)))
    yield Sample("one row a page", lambda g: _make(g, hot_shape=(20, 1), host_shape=(24, 1)))
    yield Sample("three rows a page", lambda g: _make(g, hot_shape=(7, 3)))
    yield Sample(
        "int16 rows for bfloat16",
        lambda g: _make(g, host_dtype=torch.int16, dtype=torch.bfloat16, row_bytes=1152),
    )
    yield Sample("skipped", lambda g: _exact(g, _SKIPPED))
    yield Sample("zeroed", lambda g: _exact(g, [(24, 3), (31, 4), (2**31 - 1, 0)]))
    yield Sample("int32 limits", lambda g: _exact(g, _INT32, torch.int32))
    yield Sample("int64 beyond int32", lambda g: _exact(g, _INT64))
    yield Sample("same hot row", lambda g: _exact(g, [(h, 7) for h in (3, 9, -1, 24, 5)]))
    yield Sample("same hot row, zero last", lambda g: _exact(g, [(3, 7), (9, 7), (24, 7), (-1, 7)]))
    yield Sample("null page", lambda g: _exact(g, [(0, 0), (1, 3), (2, 19)]))
    yield Sample("no rows", lambda g: _make(g, rows=0))
    yield Sample("no columns", lambda g: _make(g, top_k=0))
    yield Sample("all counts 0", lambda g: _make(g, counts=[0, 0, 0]))
    yield Sample("one entry", lambda g: _make(g, rows=1, top_k=1, counts=[1]))
    yield Sample("no host row", lambda g: _make(g, host_shape=(0,)))
    yield Sample("no hot row", lambda g: _make(g, hot_shape=(0, 4)))
    # More than a thread's worth of bytes, and each hot row several times.
    yield Sample("shared out", lambda g: _make(g, 4, 100, counts=[100] * 4, row_bytes=1152))
    if tier == "nightly":
        yield from _product()


def _product() -> Iterator[Sample]:
    for width, ids, layout, hot_shape, (gap, offset) in itertools.product(
        WIDTHS,
        (torch.int32, torch.int64),
        ("contiguous", "strided", "columns"),
        ((5, 4), (7, 3), (20,)),
        ((0, 0), (48, 0), (5, 1)),
    ):
        yield Sample(
            f"{width} B, {ids}, {layout}, {hot_shape}, gap {gap}, offset {offset}",
            lambda g, w=width, i=ids, layout=layout, s=hot_shape, gap=gap, o=offset: _make(
                g, 4, 7, ids=i, layout=layout, row_bytes=w, hot_shape=s, page_gap=gap, offset=o
            ),
        )


BAD_ARGUMENTS = [
    BadArgument(
        "host_cache dimension",
        lambda a: a.update(host_cache=a["host_cache"][0]),
        "gather_compact: host_cache must be 2-D or 3-D, got 1-D",
    ),
    BadArgument(
        "every other host byte",
        lambda a: a.update(host_cache=a["host_cache"][:, ::2]),
        "gather_compact: host_cache must have stride 1 in its last dimension, got strides (656, 2)",
    ),
    BadArgument(
        "hot_cache dimension",
        lambda a: a.update(hot_cache=a["hot_cache"][None]),
        "gather_compact: hot_cache must be 2-D or 3-D, got 4-D",
    ),
    BadArgument(
        "hot pages in one place",
        lambda a: a.update(hot_cache=a["hot_cache"][:1].expand(5, 4, 656)),
        "gather_compact: hot_cache must have row-major strides without overlap, got strides (0, 656, 1)",
    ),
    BadArgument(
        "narrow host rows",
        lambda a: a.update(host_cache=a["host_cache"][:, :640]),
        "gather_compact: host_cache must have rows of 656 bytes like hot_cache, got 640 bytes",
    ),
    BadArgument(
        "wide host elements",
        lambda a: a.update(host_cache=a["host_cache"].short()),
        "gather_compact: host_cache must have rows of 656 bytes like hot_cache, got 1312 bytes",
    ),
    BadArgument(
        "host_rows dtype",
        lambda a: a.update(host_rows=a["host_rows"].short()),
        "gather_compact: host_rows must be int32 or int64, got int16",
    ),
    BadArgument(
        "host_rows dimension",
        lambda a: a.update(host_rows=a["host_rows"][0]),
        "gather_compact: host_rows must be 2-D, got 1-D",
    ),
    BadArgument(
        "hot_rows dtype",
        lambda a: a.update(hot_rows=a["hot_rows"].float()),
        "gather_compact: hot_rows must be int32 or int64, got float32",
    ),
    BadArgument(
        "fewer rows in hot_rows",
        lambda a: a.update(hot_rows=a["hot_rows"][:2]),
        "gather_compact: hot_rows must have rows = 3 in dimension 0, got shape (2, 5)",
    ),
    BadArgument(
        "fewer columns in hot_rows",
        lambda a: a.update(hot_rows=a["hot_rows"][:, :4]),
        "gather_compact: hot_rows must have top_k = 5 in dimension 1, got shape (3, 4)",
    ),
    BadArgument(
        "counts dtype",
        lambda a: a.update(counts=a["counts"].bool()),
        "gather_compact: counts must be int32 or int64, got bool",
    ),
    BadArgument(
        "counts dimension",
        lambda a: a.update(counts=a["counts"][None]),
        "gather_compact: counts must be 1-D, got 2-D",
    ),
    BadArgument(
        "counts length",
        lambda a: a.update(counts=a["counts"][:2]),
        "gather_compact: counts must have rows = 3 in dimension 0, got shape (2)",
    ),
    BadArgument(
        "host cache in the hot cache",
        lambda a: a.update(host_cache=a["hot_cache"][1]),
        "gather_compact: host_cache must not overlap hot_cache, got shared memory",
        by_value=True,
    ),
    BadArgument(
        "host_rows in the hot cache",
        lambda a: a.update(host_rows=hot_bytes(a, 3, 5)),
        "gather_compact: host_rows must not overlap hot_cache, got shared memory",
        by_value=True,
    ),
    BadArgument(
        "hot_rows in the hot cache",
        lambda a: a.update(hot_rows=hot_bytes(a, 3, 5)),
        "gather_compact: hot_rows must not overlap hot_cache, got shared memory",
        by_value=True,
    ),
    BadArgument(
        "counts in the hot cache",
        lambda a: a.update(counts=hot_bytes(a, 3)),
        "gather_compact: counts must not overlap hot_cache, got shared memory",
        by_value=True,
    ),
]


def device_unspecified(args: dict[str, Any]) -> dict[str, torch.Tensor]:
    used = torch.arange(args["hot_rows"].shape[1]) < args["counts"][:, None]
    used = used & (args["host_rows"] >= 0)
    return repeated_rows("hot_cache", args["hot_cache"], args["hot_rows"][used])
