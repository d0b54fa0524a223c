from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from hisparse_ops.testing.buffers import buffer, poisoned
from hisparse_ops.testing.samples import BadArgument, Sample, repeated_rows
from hisparse_ops.testing.samples._gather import WIDTHS, caches, grid, hot_bytes, plan


def _add_attention(args: dict[str, Any], gen: torch.Generator, block_stride: int) -> None:
    rows, top_k = args["hot_rows"].shape
    strides = (top_k + 3, 1)
    args["attention_indices"] = poisoned((rows, top_k), torch.int32, gen=gen, strides=strides)
    args["attention_block_stride"] = block_stride


def _make(
    gen: torch.Generator,
    rows: int = 3,
    top_k: int = 5,
    *,
    misses: float = 0.5,
    block_stride: int | None = None,
    states: Sequence[int] | None = None,
    ids: torch.dtype = torch.int32,
    layout: str = "contiguous",
    **cache: Any,
) -> dict[str, Any]:
    args = caches(gen, **cache)
    args |= plan(gen, args, rows, top_k, ids, layout)
    # Any value but 0 is a miss.
    kinds = torch.tensor([1, -1, 7, 2**31 - 1])[torch.randint(0, 4, (rows, top_k), generator=gen)]
    missed = torch.rand((rows, top_k), generator=gen) < misses
    args["miss_mask"] = grid(gen, torch.where(missed, kinds, 0), ids, layout)
    if block_stride is not None:
        _add_attention(args, gen, block_stride)
    if states is not None:
        args["request_state_indices"] = buffer(
            (rows,), ids, gen=gen, strides=(2,), values=torch.tensor(states)
        )
    return args


def _exact(
    gen: torch.Generator,
    entries: Sequence[tuple[int, int, int]],
    ids: torch.dtype = torch.int64,
    **cache: Any,
) -> dict[str, Any]:
    """One row of the given (host row, hot row, mask) entries; attention pages stand 10 rows apart."""
    args = caches(gen, row_bytes=16, **cache)
    names = ("host_rows", "hot_rows", "miss_mask")
    args |= {
        name: grid(gen, values[None], ids)
        for name, values in zip(names, torch.tensor(entries).T, strict=True)
    }
    _add_attention(args, gen, 10)
    return args


# 24 host rows, 20 hot rows in pages of 4.
_SKIPPED = [(-1, 3, 1), (-7, 4, 1), (5, -1, 1), (6, 20, 1), (7, 21, 1), (3, 8, 0), (24, 9, 0)]
_INT32 = [(2**31 - 1, 1, 1), (-(2**31), 2, 1), (3, 2**31 - 1, 1), (4, -(2**31), 1), (5, 6, -1)]
_INT64 = [
    (2**32 + 5, 1, 1),
    (6, 2**32 + 3, 1),
    (-(2**32) + 7, 4, 1),
    (8, -(2**32) + 5, 1),
    (9, 7, 2**32),  # not 0, though its low half is
]


def _with_hot_ids_in_columns(gen: torch.Generator) -> dict[str, Any]:
    args = _make(gen)
    args["hot_rows"] = grid(gen, args["hot_rows"], layout="columns")
    return args


def samples(tier: str) -> Iterator[Sample]:
    yield Sample("random", lambda g: _make(g, block_stride=10, states=[2, 0, 1]))
    yield Sample("copies only", lambda g: _make(g))
    for width in WIDTHS:
        yield Sample(f"{width}-byte rows", lambda g, w=width: _make(g, row_bytes=w))
    yield Sample("stride of one page", lambda g: _make(g, block_stride=4))
    yield Sample("largest stride", lambda g: _make(g, block_stride=(2**31 - 4) // 4))
    yield Sample("stride without indices", lambda g: _make(g) | {"attention_block_stride": -3})
    yield Sample("padding rows", lambda g: _make(g, 4, block_stride=9, states=[0, -1, 2, -(2**31)]))
    yield Sample("padding rows, copies only", lambda g: _make(g, states=[-1, 7, -1]))
    yield Sample(
        "int64 ids", lambda g: _make(g, ids=torch.int64, block_stride=9, states=[0, -1, 1])
    )
    yield Sample("ids with strides of their own", _with_hot_ids_in_columns)
    yield Sample("strided ids", lambda g: _make(g, 3, 40, layout="strided", block_stride=9))
    yield Sample(
        "column-major int64 ids",
        lambda g: _make(g, 3, 40, layout="columns", ids=torch.int64, block_stride=9),
    )
    yield Sample("page gap", lambda g: _make(g, page_gap=1000, block_stride=12))
    yield Sample("row gap, odd offset", lambda g: _make(g, row_gap=3, page_gap=5, offset=1))
    yield Sample("paged host cache", lambda g: _make(g, host_shape=(6, 4), page_gap=64))
    yield Sample("flat hot cache", lambda g: _make(g, hot_shape=(20,), block_stride=20))
    yield Sample("one row a page", lambda g: _make(g, hot_shape=(20, 1), block_stride=3))
    yield Sample("three rows a page", lambda g: _make(g, hot_shape=(7, 3), block_stride=64))
    yield Sample("skipped", lambda g: _exact(g, _SKIPPED))
    yield Sample("zeroed", lambda g: _exact(g, [(24, 3, 1), (31, 4, 1), (2**31 - 1, 0, 1)]))
    yield Sample("int32 limits", lambda g: _exact(g, _INT32, torch.int32))
    yield Sample("int64 beyond int32", lambda g: _exact(g, _INT64))
    yield Sample(
        "same hot row", lambda g: _exact(g, [(h, 7, h != 5) for h in (3, 9, -1, 24, 4, 5)])
    )
    yield Sample(
        "same hot row, zero last", lambda g: _exact(g, [(3, 7, 1), (24, 7, 1), (-1, 7, 1)])
    )
    yield Sample("no misses", lambda g: _make(g, 2, 100, misses=0, block_stride=8))
    yield Sample("few misses", lambda g: _make(g, 2, 100, misses=0.03, row_bytes=16))
    yield Sample("all misses", lambda g: _make(g, 2, 35, misses=1, row_bytes=16))
    yield Sample("no rows", lambda g: _make(g, rows=0, block_stride=8, states=[]))
    yield Sample("no columns", lambda g: _make(g, top_k=0, block_stride=8))
    yield Sample("one entry", lambda g: _make(g, rows=1, top_k=1, misses=1, block_stride=8))
    yield Sample("no host row", lambda g: _make(g, host_shape=(0,)))
    yield Sample("no hot row", lambda g: _make(g, hot_shape=(0, 4), block_stride=8))
    # More than a thread's worth of bytes, and each hot row several times.
    yield Sample("shared out", lambda g: _make(g, 4, 100, misses=0.9, row_bytes=1152))
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
                g,
                4,
                7,
                block_stride=21,
                states=[0, 3, -1, 1],
                ids=i,
                layout=layout,
                row_bytes=w,
                hot_shape=s,
                page_gap=gap,
                offset=o,
            ),
        )
    for top_k in (15, 16, 17, 31, 33):
        for misses in (0.02, 0.3):
            yield Sample(
                f"top_k {top_k}, {misses:.0%} misses",
                lambda g, k=top_k, m=misses: _make(g, 5, k, misses=m, row_bytes=16, block_stride=4),
            )


def _in_attention(name: str) -> BadArgument:
    """``attention_indices`` stands in an argument that is read."""

    def change(args: dict[str, Any]) -> None:
        t = args[name]
        if t.dtype == torch.uint8:
            table = t.view(torch.int32).flatten(0, -2)[:3, :5]
        else:
            table = torch.zeros(3, 5, dtype=torch.int32)
            args[name] = table if t.dim() == 2 else table[:, 0]
        args["attention_indices"] = table

    error = f"gather_plan: {name} must not overlap attention_indices, got shared memory"
    return BadArgument(f"attention_indices in {name}", change, error, by_value=True)


def _in_hot_cache(name: str) -> BadArgument:
    def change(args: dict[str, Any]) -> None:
        args[name] = hot_bytes(args, *args[name].shape)

    error = f"gather_plan: {name} must not overlap hot_cache, got shared memory"
    return BadArgument(f"{name} in the hot cache", change, error, by_value=True)


BAD_ARGUMENTS = [
    BadArgument(
        "host_cache dimension",
        lambda a: a.update(host_cache=a["host_cache"][0]),
        "gather_plan: host_cache must be 2-D or 3-D, got 1-D",
    ),
    BadArgument(
        "hot pages in one place",
        lambda a: a.update(hot_cache=a["hot_cache"][:1].expand(5, 4, 656)),
        "gather_plan: hot_cache must have row-major strides without overlap, got strides (0, 656, 1)",
    ),
    BadArgument(
        "narrow host rows",
        lambda a: a.update(host_cache=a["host_cache"][:, :640]),
        "gather_plan: host_cache must have rows of 656 bytes like hot_cache, got 640 bytes",
    ),
    BadArgument(
        "host_rows dtype",
        lambda a: a.update(host_rows=a["host_rows"].short()),
        "gather_plan: host_rows must be int32 or int64, got int16",
    ),
    BadArgument(
        "fewer rows in hot_rows",
        lambda a: a.update(hot_rows=a["hot_rows"][:2]),
        "gather_plan: hot_rows must have rows = 3 in dimension 0, got shape (2, 5)",
    ),
    BadArgument(
        "miss_mask dtype",
        lambda a: a.update(miss_mask=a["miss_mask"].bool()),
        "gather_plan: miss_mask must be int32 or int64, got bool",
    ),
    BadArgument(
        "miss_mask dimension",
        lambda a: a.update(miss_mask=a["miss_mask"][0]),
        "gather_plan: miss_mask must be 2-D, got 1-D",
    ),
    BadArgument(
        "fewer columns in miss_mask",
        lambda a: a.update(miss_mask=a["miss_mask"][:, :4]),
        "gather_plan: miss_mask must have top_k = 5 in dimension 1, got shape (3, 4)",
    ),
    BadArgument(
        "attention_indices dtype",
        lambda a: a.update(attention_indices=a["attention_indices"].long()),
        "gather_plan: attention_indices must be int32, got int64",
    ),
    BadArgument(
        "attention_indices column-major",
        lambda a: a.update(attention_indices=a["attention_indices"].mT.contiguous().mT),
        "gather_plan: attention_indices must have stride 1 in its last dimension, got strides (1, 3)",
    ),
    BadArgument(
        "attention_indices rows in one place",
        lambda a: a.update(attention_indices=a["attention_indices"][:1].expand(3, 5)),
        "gather_plan: attention_indices must have row-major strides without overlap, got strides (0, 1)",
    ),
    BadArgument(
        "more columns in attention_indices",
        lambda a: a.update(attention_indices=torch.zeros(3, 6, dtype=torch.int32)),
        "gather_plan: attention_indices must have top_k = 5 in dimension 1, got shape (3, 6)",
    ),
    BadArgument(
        "stride below the block size",
        lambda a: a.update(attention_block_stride=3),
        "gather_plan: attention_block_stride must be between 4 and 536870911, got 3",
    ),
    BadArgument(
        "no stride",
        lambda a: a.pop("attention_block_stride"),
        "gather_plan: attention_block_stride must be between 4 and 536870911, got 0",
    ),
    BadArgument(
        "stride beyond int32 indices",
        lambda a: a.update(attention_block_stride=2**29),
        "gather_plan: attention_block_stride must be between 4 and 536870911, got 536870912",
    ),
    BadArgument(
        "request_state_indices dtype",
        lambda a: a.update(request_state_indices=a["request_state_indices"].short()),
        "gather_plan: request_state_indices must be int32 or int64, got int16",
    ),
    BadArgument(
        "request_state_indices length",
        lambda a: a.update(request_state_indices=a["request_state_indices"][:2]),
        "gather_plan: request_state_indices must have rows = 3 in dimension 0, got shape (2)",
    ),
    BadArgument(
        "host cache in the hot cache",
        lambda a: a.update(host_cache=a["hot_cache"][1]),
        "gather_plan: host_cache must not overlap hot_cache, got shared memory",
        by_value=True,
    ),
    *map(_in_hot_cache, ("host_rows", "hot_rows", "miss_mask", "request_state_indices")),
    *map(
        _in_attention,
        (
            "hot_cache",
            "host_cache",
            "host_rows",
            "hot_rows",
            "miss_mask",
            "request_state_indices",
        ),
    ),
]


def device_unspecified(args: dict[str, Any]) -> dict[str, torch.Tensor]:
    used = (args["miss_mask"] != 0) & (args["host_rows"] >= 0)
    return repeated_rows("hot_cache", args["hot_cache"], args["hot_rows"][used])
