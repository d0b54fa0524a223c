from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from hisparse_ops.testing.buffers import buffer
from hisparse_ops.testing.samples import BadArgument, Sample

WIDTHS = (1, 7, 16, 132, 512, 576, 584, 656, 1152)
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def _slab(
    gen: torch.Generator,
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.uint8,
    *,
    page_gap: int = 0,
    row_gap: int = 0,
    offset: int = 0,
) -> Tensor:
    """Rows, flat or paged, with bytes of someone else between pages and rows."""
    row = shape[-1] + row_gap
    strides = (row, 1) if len(shape) == 2 else (shape[1] * row + page_gap, row, 1)
    # Small integers in float dtypes: opcheck compares by value, and a NaN is not itself.
    values = torch.randint(0, 100, shape, generator=gen) if dtype.is_floating_point else None
    return buffer(shape, dtype, gen=gen, strides=strides, offset=offset, values=values)


def _make(
    gen: torch.Generator,
    *,
    n: int = 9,
    width: int = 24,
    source: tuple[int, ...] = (5, 4),
    staging: tuple[int, ...] | None = None,
    dtypes: tuple[torch.dtype, torch.dtype] = (torch.uint8, torch.uint8),
    ids: Callable[[torch.Generator, int, int], Tensor] | list[int] | None = None,
    ids_dtype: torch.dtype = torch.int32,
    ids_stride: int = 1,
    invalid: str = "keep",
    **layout: int,
) -> dict[str, Any]:
    rows = source[0] if len(source) == 1 else source[0] * source[1]
    if callable(ids):
        values = ids(gen, n, rows)
    elif ids is not None:
        values, n = torch.tensor(ids), len(ids)
    else:
        values = torch.randint(-1, rows + 1, (n,), generator=gen)
    row_ids = buffer((len(values),), ids_dtype, gen=gen, strides=(ids_stride,), values=values)
    return {
        "source": _slab(gen, (*source, width), dtypes[0], **layout),
        "row_ids": row_ids.expand(n),
        "staging": _slab(gen, (*(staging or (n,)), width), dtypes[1], **layout),
        "invalid": invalid,
    }


def _permutation(gen: torch.Generator, n: int, rows: int) -> Tensor:
    return torch.randperm(rows, generator=gen)[:n]


def _sample(name: str, **arguments: Any) -> Sample:
    return Sample(name, lambda gen: _make(gen, **arguments))


def samples(tier: str) -> Iterator[Sample]:
    yield _sample("paged to flat", page_gap=100)
    for width in WIDTHS:
        yield _sample(f"width {width}", width=width, page_gap=3 * width, offset=1)
    yield _sample("flat to paged", source=(31,), staging=(3, 4), page_gap=50, ids_dtype=torch.int64)
    yield _sample("paged to paged of another size", source=(3, 7), staging=(5, 2), page_gap=24)
    yield _sample("gaps between rows", row_gap=9, page_gap=5, ids_dtype=torch.int64)
    outside = [3, -1, 20, 21, -2, 0, 19, INT64_MIN, INT64_MAX, 2**32, 2**32 + 1, -(2**32)]
    for invalid in ("row0", "keep"):
        yield _sample(
            f"ids outside, {invalid}", ids=outside, ids_dtype=torch.int64, invalid=invalid
        )
        yield _sample(f"all ids -1, {invalid}", ids=[-1] * 5, invalid=invalid)
        yield _sample(f"no rows, {invalid}", n=0, invalid=invalid)
        yield _sample(
            f"no rows from an empty source, {invalid}", n=0, source=(0, 4), invalid=invalid
        )
    yield _sample("empty source, keep", source=(0, 4), ids=[0, -1, 3])
    yield _sample("one row", n=1, source=(1, 1), ids=[0])
    yield _sample("every id the same", ids=[7] * 9)
    yield _sample("strided ids", ids_stride=3, ids_dtype=torch.int64)
    yield _sample("one id expanded", ids=lambda gen, n, rows: torch.tensor([6]))
    yield _sample("staging longer than the ids", staging=(4, 5), page_gap=10, invalid="row0")
    # float8 is in the named tests: opcheck has no arithmetic for it.
    yield _sample("bfloat16 over int16", width=64, dtypes=(torch.bfloat16, torch.int16))
    yield _sample("int16 over bfloat16", width=64, dtypes=(torch.int16, torch.bfloat16))
    yield _sample(
        "enough for several threads",
        n=700,
        width=656,
        source=(6, 64),
        staging=(11, 64),
        page_gap=656,
        ids_dtype=torch.int64,
        invalid="row0",
    )
    if tier != "nightly":
        return
    places = {"flat": (40,), "pages": (10, 4)}
    for width, place, to, dtype, invalid, offset in itertools.product(
        WIDTHS, places, places, (torch.int32, torch.int64), ("row0", "keep"), (0, 3)
    ):
        yield _sample(
            f"{width} B, {place} to {to}, {dtype}, {invalid}, offset {offset}",
            n=33,
            width=width,
            source=places[place],
            staging=places[to],
            ids_dtype=dtype,
            invalid=invalid,
            offset=offset,
            page_gap=2 * width,
            row_gap=offset,
        )
    yield _sample("permutation", n=2000, width=132, source=(40, 64), ids=_permutation)


BAD_ARGUMENTS = [
    BadArgument(
        "source dimension",
        lambda a: a.update(source=a["source"][0, 0]),
        "copy_resident_rows: source must be 2-D or 3-D, got 1-D",
    ),
    BadArgument(
        "source rows not side by side",
        lambda a: a.update(source=a["source"][:, :, ::2]),
        "copy_resident_rows: source must have stride 1 in its last dimension,"
        " got strides (196, 24, 2)",
    ),
    BadArgument(
        "ids dtype",
        lambda a: a.update(row_ids=a["row_ids"].short()),
        "copy_resident_rows: row_ids must be int32 or int64, got int16",
    ),
    BadArgument(
        "ids dimension",
        lambda a: a.update(row_ids=a["row_ids"][None]),
        "copy_resident_rows: row_ids must be 1-D, got 2-D",
    ),
    BadArgument(
        "staging dimension",
        lambda a: a.update(staging=a["staging"][0]),
        "copy_resident_rows: staging must be 2-D or 3-D, got 1-D",
    ),
    BadArgument(
        "overlapping staging",
        lambda a: a.update(staging=a["staging"][:1].expand(9, 24)),
        "copy_resident_rows: staging must have row-major strides without overlap, got strides (0, 1)",
    ),
    BadArgument(
        "narrower staging",
        lambda a: a.update(staging=a["staging"][:, :20]),
        "copy_resident_rows: staging must have rows of 24 bytes like source, got 20 bytes",
    ),
    BadArgument(
        "as many elements of another size",
        lambda a: a.update(staging=torch.zeros(9, 24, dtype=torch.int16)),
        "copy_resident_rows: staging must have rows of 24 bytes like source, got 48 bytes",
    ),
    BadArgument(
        "short staging",
        lambda a: a.update(staging=a["staging"][:8]),
        "copy_resident_rows: staging must have at least 9 rows like row_ids, got 8",
    ),
    BadArgument(
        "unknown invalid",
        lambda a: a.update(invalid="zero"),
        'copy_resident_rows: invalid must be "row0" or "keep", got "zero"',
    ),
    BadArgument(
        "no row 0",
        lambda a: a.update(source=a["source"][:0], invalid="row0"),
        'copy_resident_rows: source must have a row 0 with invalid = "row0", got 0 rows',
    ),
    BadArgument(
        "staging inside the source",
        lambda a: a.update(staging=a["source"][1:4]),
        "copy_resident_rows: staging must not overlap source, got shared memory",
        by_value=True,
    ),
    BadArgument(
        "ids inside the staging",
        lambda a: a.update(row_ids=a["staging"].view(torch.int32)[2, 1:5]),
        "copy_resident_rows: staging must not overlap row_ids, got shared memory",
        by_value=True,
    ),
]
