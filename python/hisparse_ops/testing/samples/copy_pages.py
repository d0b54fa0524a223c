from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hisparse_ops.testing.buffers import buffer
from hisparse_ops.testing.samples import BadArgument, Sample

WIDTHS = (1, 7, 16, 132, 512, 576, 584, 656, 1152)
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def _layers(
    gen: torch.Generator, blocks: int, sizes: Sequence[tuple[int, int]], gap: int, offset: int
) -> list[Tensor]:
    """One slab of (block_size, width) a layer, all in one buffer; gaps after pages and rows."""
    pages = [block_size * (width + gap) + gap for block_size, width in sizes]
    whole = buffer((blocks, sum(pages)), torch.uint8, gen=gen, offset=offset)
    starts = [sum(pages[:layer]) for layer in range(len(pages))]
    return [
        whole.as_strided(
            (blocks, *size), (sum(pages), size[1] + gap, 1), whole.storage_offset() + start
        )
        for size, start in zip(sizes, starts, strict=True)
    ]


def _make(
    gen: torch.Generator,
    *,
    pairs: Sequence[Sequence[int]] | int,
    sizes: Sequence[tuple[int, int]] = ((4, 24),),
    blocks: tuple[int, int] = (6, 8),
    dtype: torch.dtype = torch.int32,
    strides: tuple[int, int] | None = None,
    gap: int = 0,
    to_gap: int = 0,
    offset: int = 0,
) -> dict[str, Any]:
    if isinstance(pairs, int):
        columns = [torch.randint(-1, end + 1, (pairs,), generator=gen) for end in blocks]
        values = torch.stack(columns, 1)
    else:
        values = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    return {
        "sources": _layers(gen, blocks[0], sizes, gap, offset),
        "destinations": _layers(gen, blocks[1], sizes, to_gap, offset),
        "page_pairs": buffer(tuple(values.shape), dtype, gen=gen, strides=strides, values=values),
    }


def _sample(name: str, **arguments: Any) -> Sample:
    return Sample(name, lambda gen: _make(gen, **arguments))


def samples(tier: str) -> Iterator[Sample]:
    yield _sample("two layers", pairs=[(5, 2), (1, 7), (3, 1)], sizes=((4, 24), (4, 24)))
    for width in WIDTHS:
        yield _sample(f"width {width}", pairs=6, sizes=((3, width), (3, width)), offset=1)
    yield _sample("gaps between rows", pairs=6, sizes=((4, 24), (4, 24)), gap=5, to_gap=3)
    yield _sample("gaps between source rows", pairs=6, sizes=((4, 24),), gap=5)
    yield _sample("gaps between destination rows", pairs=6, sizes=((4, 24),), to_gap=5)
    yield _sample("layers of different sizes", pairs=6, sizes=((4, 132), (2, 656), (1, 7)))
    yield _sample("null block", pairs=[(0, 3), (3, 0), (0, 0), (2, 2)])
    edges = (INT64_MIN, -1, 0, 1, 5, 6, 7, 8, 2**32 + 1, INT64_MAX)
    yield _sample("pages outside", pairs=list(itertools.product(edges, edges)), dtype=torch.int64)
    yield _sample("later pair wins", pairs=[(1, 4), (2, 4), (3, 4), (2, 5), (1, 5)])
    yield _sample("strided pairs", pairs=7, strides=(1, 9), dtype=torch.int64)
    yield _sample("no pairs", pairs=[], sizes=((4, 24), (4, 24)))
    yield _sample("no layers", pairs=3, sizes=())
    yield _sample("no pages", pairs=3, blocks=(0, 3))
    yield _sample("only null blocks", pairs=3, blocks=(1, 1))
    yield _sample("empty pages", pairs=3, sizes=((0, 24),))
    yield _sample("one row a page", pairs=9, sizes=((1, 16), (1, 16)))
    yield _sample("enough for several threads", pairs=40, sizes=((64, 656),))
    yield _sample("several layers for several threads", pairs=12, sizes=((64, 132),) * 5, gap=1)
    if tier != "nightly":
        return
    for width, block_size, dtype, gap, offset in itertools.product(
        WIDTHS, (1, 2, 13), (torch.int32, torch.int64), (0, 31), (0, 3)
    ):
        yield _sample(
            f"{width} B, {block_size} rows, {dtype}, gap {gap}, offset {offset}",
            pairs=12,
            sizes=((block_size, width), (2, 16)),
            dtype=dtype,
            gap=gap,
            offset=offset,
        )


def _share_layer(a: dict[str, Any]) -> None:
    a["destinations"] = [a["destinations"][0], a["destinations"][0]]


BAD_ARGUMENTS = [
    BadArgument(
        "fewer sources",
        lambda a: a["sources"].pop(),
        "copy_pages: destinations must have length = 1 like sources, got 2",
    ),
    BadArgument(
        "flat source",
        lambda a: a["sources"].__setitem__(0, a["sources"][0].flatten(0, 1)),
        "copy_pages: sources[0] must be 3-D, got 2-D",
    ),
    BadArgument(
        "flat destination",
        lambda a: a["destinations"].__setitem__(1, torch.zeros(32, 24, dtype=torch.uint8)),
        "copy_pages: destinations[1] must be 3-D, got 2-D",
    ),
    BadArgument(
        "source rows not side by side",
        lambda a: a["sources"].__setitem__(1, a["sources"][1][:, :, ::2]),
        "copy_pages: sources[1] must have stride 1 in its last dimension, got strides (192, 24, 2)",
    ),
    BadArgument(
        "overlapping destination pages",
        lambda a: a["destinations"].__setitem__(1, a["destinations"][1][:1].expand(8, 4, 24)),
        "copy_pages: destinations[1] must have row-major strides without overlap,"
        " got strides (0, 24, 1)",
    ),
    BadArgument(
        "narrower destination",
        lambda a: a["destinations"].__setitem__(0, a["destinations"][0][:, :, :20]),
        "copy_pages: destinations[0] must have rows of 24 bytes like sources[0], got 20 bytes",
    ),
    BadArgument(
        "shorter destination pages",
        lambda a: a["destinations"].__setitem__(0, a["destinations"][0][:, :3]),
        "copy_pages: destinations[0] must have block_size = 4 in dimension 1, got shape (8, 3, 24)",
    ),
    BadArgument(
        "pairs dtype",
        lambda a: a.update(page_pairs=a["page_pairs"].short()),
        "copy_pages: page_pairs must be int32 or int64, got int16",
    ),
    BadArgument(
        "pairs dimension",
        lambda a: a.update(page_pairs=a["page_pairs"].flatten()),
        "copy_pages: page_pairs must be 2-D, got 1-D",
    ),
    BadArgument(
        "three columns",
        lambda a: a.update(page_pairs=torch.zeros(3, 3, dtype=torch.int32)),
        "copy_pages: page_pairs must have columns = 2 in dimension 1, got shape (3, 3)",
    ),
    BadArgument(
        "destination inside a source of another layer",
        lambda a: a["destinations"].__setitem__(0, a["sources"][1][2:]),
        "copy_pages: destinations[0] must not overlap sources[1], got shared memory",
        by_value=True,
    ),
    BadArgument(
        "two layers in one destination",
        _share_layer,
        "copy_pages: destinations[1] must not overlap destinations[0], got shared memory",
        by_value=True,
    ),
    BadArgument(
        "pairs inside a destination",
        lambda a: a.update(page_pairs=a["destinations"][0].view(torch.int32)[3, :, 1:3]),
        "copy_pages: destinations[0] must not overlap page_pairs, got shared memory",
        by_value=True,
    ),
]
