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
    gen: torch.Generator,
    place: tuple[int, ...],
    widths: Sequence[int],
    *,
    gap: int,
    row_gap: int,
    offset: int,
) -> list[Tensor]:
    """One slab a layer: paged ones interleave in one buffer with ``gap`` bytes after each page."""
    if len(place) == 1:
        wide = [buffer((*place, w + row_gap), torch.uint8, gen=gen, offset=offset) for w in widths]
        return [t[:, :w] for t, w in zip(wide, widths, strict=True)]
    blocks, block_size = place
    sizes = [block_size * (w + row_gap) + gap for w in widths]
    whole = buffer((blocks, sum(sizes)), torch.uint8, gen=gen, offset=offset)
    starts = [sum(sizes[:layer]) for layer in range(len(sizes))]
    return [
        whole.as_strided(
            (blocks, block_size, w), (sum(sizes), w + row_gap, 1), whole.storage_offset() + start
        )
        for w, start in zip(widths, starts, strict=True)
    ]


def _make(
    gen: torch.Generator,
    *,
    spans: Sequence[Sequence[int]] | int,
    widths: Sequence[int] = (24,),
    source: tuple[int, ...] = (5, 4),
    destination: tuple[int, ...] = (30,),
    longest: int = 6,
    dtype: torch.dtype = torch.int64,
    strides: tuple[int, int] | None = None,
    gap: int = 0,
    row_gaps: tuple[int, int] = (0, 0),
    offset: int = 0,
) -> dict[str, Any]:
    if isinstance(spans, int):
        ends = [place[0] * (*place, 1)[1] for place in (source, destination)]
        columns = [torch.randint(-3, end + 2, (spans,), generator=gen) for end in ends]
        counts = torch.randint(-1, longest + 1, (spans,), generator=gen)
        values = torch.stack([*columns, counts], 1)
    else:
        values = torch.tensor(spans, dtype=torch.int64).reshape(-1, 3)
    shape = tuple(values.shape)
    return {
        "sources": _layers(gen, source, widths, gap=gap, row_gap=row_gaps[0], offset=offset),
        "destinations": _layers(
            gen, destination, widths, gap=gap, row_gap=row_gaps[1], offset=offset
        ),
        "spans": buffer(shape, dtype, gen=gen, strides=strides, values=values),
    }


def _sample(name: str, **arguments: Any) -> Sample:
    return Sample(name, lambda gen: _make(gen, **arguments))


def samples(tier: str) -> Iterator[Sample]:
    yield _sample(
        "paged to flat", spans=[(4, 2, 3), (17, 20, 2), (9, 0, 1)], widths=(24, 24), gap=40
    )
    for width in WIDTHS:
        yield _sample(
            f"width {width}", spans=4, widths=(width,), destination=(4, 3), gap=5, offset=1
        )
    yield _sample("flat to pages", spans=6, source=(30,), destination=(5, 4), gap=8)
    yield _sample("pages of different sizes", spans=6, source=(3, 7), destination=(6, 4), gap=8)
    yield _sample("layers of different widths", spans=8, widths=(132, 656, 7), gap=16)
    yield _sample("whole slab without gaps", spans=[(0, 0, 20)], destination=(5, 4))
    yield _sample("whole slab with gaps", spans=[(0, 0, 20)], destination=(10, 2), gap=1)
    yield _sample("gaps between source rows", spans=6, destination=(5, 4), row_gaps=(3, 0))
    yield _sample("gaps between destination rows", spans=6, row_gaps=(0, 3))
    yield _sample("gaps between rows", spans=6, destination=(5, 4), gap=7, row_gaps=(5, 2))
    yield _sample("negative starts", spans=[(-2, 5, 4), (5, -2, 4), (-3, -1, 5), (-4, 3, 4)])
    yield _sample(
        "past the end", spans=[(18, 0, 5), (0, 28, 5), (20, 0, 1), (0, 30, 1), (19, 29, 1)]
    )
    yield _sample("no rows", spans=[(3, 3, 0), (3, 3, -1), (3, 3, INT64_MIN)])
    huge = (INT64_MIN, INT64_MIN + 1, -100, -1, 0, 7, INT64_MAX - 1, INT64_MAX)
    yield _sample(
        "ends of int64",
        spans=[*itertools.product(huge, huge, (INT64_MAX, 1)), (-5, 1 - 2**62, 2**62 + 4)],
    )
    yield _sample("ids beyond int32", spans=[(2**32, 0, 1), (0, 2**32 + 3, 1), (1, 1, 2**33)])
    yield _sample("later span wins", spans=[(0, 5, 6), (10, 7, 6), (3, 8, 1), (4, 8, 1)])
    yield _sample("int32", spans=9, widths=(16, 16), dtype=torch.int32)
    yield _sample("strided spans", spans=9, dtype=torch.int32, strides=(1, 11))
    yield _sample("no spans", spans=[], widths=(24, 24))
    yield _sample("no layers", spans=3, widths=())
    yield _sample("empty source", spans=3, source=(0, 4))
    yield _sample("empty destination", spans=3, destination=(0,))
    yield _sample("one row", spans=[(0, 0, 1)], source=(1, 1), destination=(1,))
    yield _sample("one row a page", spans=5, source=(20, 1), destination=(9, 1), gap=3)
    yield _sample(
        "enough for several threads",
        spans=300,
        longest=3,
        widths=(656,),
        source=(3, 64),
        destination=(2, 128),
        gap=656,
    )
    yield _sample(
        "one span for several threads",
        spans=[(1, 2, 500), (200, 130, 200)],
        widths=(656, 132),
        source=(8, 64),
        destination=(600,),
        gap=64,
    )
    if tier != "nightly":
        return
    places = {"flat": (40,), "pages": (10, 4), "long pages": (3, 13)}
    for width, place, to, dtype, gap, offset in itertools.product(
        WIDTHS, places, places, (torch.int32, torch.int64), (0, 31), (0, 3)
    ):
        yield _sample(
            f"{width} B, {place} to {to}, {dtype}, gap {gap}, offset {offset}",
            spans=12,
            longest=15,
            widths=(width, width),
            source=places[place],
            destination=places[to],
            dtype=dtype,
            gap=gap,
            offset=offset,
        )


def _share_layer(a: dict[str, Any]) -> None:
    a["destinations"] = [a["destinations"][0], a["destinations"][0]]


BAD_ARGUMENTS = [
    BadArgument(
        "fewer destinations",
        lambda a: a["destinations"].pop(),
        "copy_row_spans: destinations must have length = 2 like sources, got 1",
    ),
    BadArgument(
        "source dimension",
        lambda a: a["sources"].__setitem__(1, a["sources"][1][0, 0]),
        "copy_row_spans: sources[1] must be 2-D or 3-D, got 1-D",
    ),
    BadArgument(
        "source rows not side by side",
        lambda a: a["sources"].__setitem__(0, a["sources"][0][:, :, ::2]),
        "copy_row_spans: sources[0] must have stride 1 in its last dimension,"
        " got strides (272, 24, 2)",
    ),
    BadArgument(
        "destination dimension",
        lambda a: a["destinations"].__setitem__(0, a["destinations"][0][0]),
        "copy_row_spans: destinations[0] must be 2-D or 3-D, got 1-D",
    ),
    BadArgument(
        "overlapping destination rows",
        lambda a: a["destinations"].__setitem__(1, a["destinations"][1][:1].expand(30, 24)),
        "copy_row_spans: destinations[1] must have row-major strides without overlap,"
        " got strides (0, 1)",
    ),
    BadArgument(
        "narrower destination",
        lambda a: a["destinations"].__setitem__(1, a["destinations"][1][:, :20]),
        "copy_row_spans: destinations[1] must have rows of 24 bytes like sources[1], got 20 bytes",
    ),
    BadArgument(
        "spans dtype",
        lambda a: a.update(spans=a["spans"].double()),
        "copy_row_spans: spans must be int32 or int64, got float64",
    ),
    BadArgument(
        "spans dimension",
        lambda a: a.update(spans=a["spans"][0]),
        "copy_row_spans: spans must be 2-D, got 1-D",
    ),
    BadArgument(
        "two columns",
        lambda a: a.update(spans=a["spans"][:, :2]),
        "copy_row_spans: spans must have columns = 3 in dimension 1, got shape (3, 2)",
    ),
    BadArgument(
        "destination inside a source of another layer",
        lambda a: a["destinations"].__setitem__(0, a["sources"][1][3:]),
        "copy_row_spans: destinations[0] must not overlap sources[1], got shared memory",
        by_value=True,
    ),
    BadArgument(
        "two layers in one destination",
        _share_layer,
        "copy_row_spans: destinations[1] must not overlap destinations[0], got shared memory",
        by_value=True,
    ),
    BadArgument(
        "spans inside a destination",
        lambda a: a.update(spans=a["destinations"][1].view(torch.int64)[2:4]),
        "copy_row_spans: destinations[1] must not overlap spans, got shared memory",
        by_value=True,
    ),
]
