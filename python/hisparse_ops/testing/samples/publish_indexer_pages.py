from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from hisparse_ops.testing.buffers import buffer
from hisparse_ops.testing.samples import BadArgument, Sample

WIDTHS = (1, 7, 16, 132, 256, 512, 656, 1152)
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def _make(
    gen: torch.Generator,
    *,
    entries: Sequence[Sequence[int]] | int = 6,
    counts: Sequence[int] | bool = False,
    width: int = 24,
    block_size: int = 4,
    blocks: tuple[int, int] = (6, 9),
    dtypes: tuple[torch.dtype, torch.dtype] = (torch.uint8, torch.uint8),
    ids: torch.dtype = torch.int32,
    ids_stride: int = 1,
    source_gap: int = 0,
    others: int = 100,
    offset: int = 0,
) -> dict[str, Any]:
    """``others``: elements of other layers between two pages of the slab."""
    if isinstance(entries, int):
        columns = [torch.randint(-1, end + 1, (entries,), generator=gen) for end in blocks]
        pairs = torch.stack(columns, 1)
    else:
        pairs = torch.tensor(entries, dtype=torch.int64).reshape(-1, 2)
    n = len(pairs)
    if counts is True:
        counts = torch.randint(-1, block_size + 2, (n,), generator=gen).tolist()

    def pages(count: int, dtype: torch.dtype, gap: int) -> torch.Tensor:
        shape = (count, block_size, width)
        # Small integers in float dtypes: opcheck compares by value, and a NaN is not itself.
        values = torch.randint(0, 100, shape, generator=gen) if dtype.is_floating_point else None
        strides = (block_size * width + gap, width, 1)
        return buffer(shape, dtype, gen=gen, strides=strides, offset=offset, values=values)

    def table(values: Any) -> torch.Tensor:
        return buffer((n,), ids, gen=gen, strides=(ids_stride,), values=values)

    args = {
        "source": pages(blocks[0], dtypes[0], source_gap),
        "source_blocks": table(pairs[:, 0]),
        "logical_blocks": table(pairs[:, 1]),
        "slab": pages(blocks[1], dtypes[1], others),
    }
    if counts is not False:
        args["row_counts"] = table(torch.tensor(counts, dtype=torch.int64))
    return args


def _sample(name: str, **arguments: Any) -> Sample:
    return Sample(name, lambda gen: _make(gen, **arguments))


def samples(tier: str) -> Iterator[Sample]:
    yield _sample("partial pages", entries=[(5, 2), (1, 8), (3, 1)], counts=[2, 4, 1])
    yield _sample("whole pages", entries=[(5, 2), (1, 8), (3, 1)])
    for width in WIDTHS:
        yield _sample(f"width {width}", width=width, counts=True, others=3 * width, offset=1)
    yield _sample("bfloat16 over int16", width=128, dtypes=(torch.bfloat16, torch.int16))
    yield _sample("gaps in the source", counts=True, source_gap=7, others=0)
    yield _sample("null block", entries=[(0, 3), (3, 0), (0, 0), (2, 4)], counts=[4, 4, 4, 4])
    edges = (INT64_MIN, -1, 0, 1, 5, 6, 8, 9, 2**32 + 1, INT64_MAX)
    yield _sample("blocks outside", entries=list(itertools.product(edges, edges)), ids=torch.int64)
    yield _sample(
        "counts outside",
        entries=[(i % 5 + 1, i + 1) for i in range(8)],
        counts=[-1, 0, 5, INT64_MIN, INT64_MAX, 4, 2**32, 2**32 + 1],
        ids=torch.int64,
    )
    yield _sample(
        "later entry wins row by row",
        entries=[(1, 4), (2, 4), (3, 4), (4, 5), (5, 5)],
        counts=[4, 3, 1, 2, 0],
    )
    yield _sample("strided ids", entries=9, counts=True, ids=torch.int64, ids_stride=2)
    yield _sample("nothing listed", entries=[], counts=[])
    yield _sample("no pages", entries=3, blocks=(0, 4))
    yield _sample("only null blocks", entries=3, blocks=(1, 1))
    yield _sample("one row a page", entries=8, block_size=1, counts=True)
    yield _sample("enough for several threads", entries=60, counts=True, block_size=64, width=132)
    if tier != "nightly":
        return
    for width, block_size, ids, others, offset, counts in itertools.product(
        WIDTHS, (1, 5, 64), (torch.int32, torch.int64), (0, 31), (0, 3), (False, True)
    ):
        yield _sample(
            f"{width} B, {block_size} rows, {ids}, {others} between, offset {offset},"
            f" counts {counts}",
            entries=12,
            width=width,
            block_size=block_size,
            ids=ids,
            others=others,
            offset=offset,
            counts=counts,
        )


BAD_ARGUMENTS = [
    BadArgument(
        "flat source",
        lambda a: a.update(source=a["source"].flatten(0, 1)),
        "publish_indexer_pages: source must be 3-D, got 2-D",
    ),
    BadArgument(
        "source rows not side by side",
        lambda a: a.update(source=a["source"][:, :, ::2]),
        "publish_indexer_pages: source must have stride 1 in its last dimension,"
        " got strides (96, 24, 2)",
    ),
    BadArgument(
        "source blocks dtype",
        lambda a: a.update(source_blocks=a["source_blocks"].short()),
        "publish_indexer_pages: source_blocks must be int32 or int64, got int16",
    ),
    BadArgument(
        "logical blocks dimension",
        lambda a: a.update(logical_blocks=a["logical_blocks"][None]),
        "publish_indexer_pages: logical_blocks must be 1-D, got 2-D",
    ),
    BadArgument(
        "fewer logical blocks",
        lambda a: a.update(logical_blocks=a["logical_blocks"][:2]),
        "publish_indexer_pages: logical_blocks must have length = 3 in dimension 0, got shape (2)",
    ),
    BadArgument(
        "slab of another dimension",
        lambda a: a.update(slab=a["slab"][:, None]),
        "publish_indexer_pages: slab must be 3-D, got 4-D",
    ),
    BadArgument(
        "overlapping slab pages",
        lambda a: a.update(slab=a["slab"][:1].expand(9, 4, 24)),
        "publish_indexer_pages: slab must have row-major strides without overlap,"
        " got strides (0, 24, 1)",
    ),
    BadArgument(
        "wider slab rows",
        lambda a: a.update(source=a["source"][:, :, :20]),
        "publish_indexer_pages: slab must have rows of 20 bytes like source, got 24 bytes",
    ),
    BadArgument(
        "longer slab pages",
        lambda a: a.update(source=a["source"][:, :3]),
        "publish_indexer_pages: slab must have block_size = 3 in dimension 1, got shape (9, 4, 24)",
    ),
    BadArgument(
        "counts dtype",
        lambda a: a.update(row_counts=a["row_counts"].float()),
        "publish_indexer_pages: row_counts must be int32 or int64, got float32",
    ),
    BadArgument(
        "fewer counts",
        lambda a: a.update(row_counts=a["row_counts"][:2]),
        "publish_indexer_pages: row_counts must have length = 3 in dimension 0, got shape (2)",
    ),
    BadArgument(
        "slab is the source",
        lambda a: a.update(slab=a["source"]),
        "publish_indexer_pages: slab must not overlap source, got shared memory",
        by_value=True,
    ),
    BadArgument(
        "source blocks inside the slab",
        lambda a: a.update(source_blocks=a["slab"].view(torch.int32)[1, 0, :3]),
        "publish_indexer_pages: slab must not overlap source_blocks, got shared memory",
        by_value=True,
    ),
    BadArgument(
        "logical blocks inside the slab",
        lambda a: a.update(logical_blocks=a["slab"].view(torch.int32)[8, 3, 3:]),
        "publish_indexer_pages: slab must not overlap logical_blocks, got shared memory",
        by_value=True,
    ),
    BadArgument(
        "counts inside the slab",
        lambda a: a.update(row_counts=a["slab"].view(torch.int32)[2, 1, :3]),
        "publish_indexer_pages: slab must not overlap row_counts, got shared memory",
        by_value=True,
    ),
]
