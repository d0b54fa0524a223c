from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from hisparse_ops.testing.buffers import buffer
from hisparse_ops.testing.samples import BadArgument, Sample, repeated_rows
from hisparse_ops.testing.samples._c8 import EDGE_SLOTS, WIDE_SLOTS, make_slots

U8 = torch.uint8
BF16 = torch.bfloat16


def _cache(
    gen: torch.Generator,
    blocks: int,
    block_size: int,
    width: int,
    dtype: torch.dtype,
    gap: int = 0,
    offset: int = 0,
) -> Tensor:
    strides = (block_size * width + gap, width, 1)
    return buffer((blocks, block_size, width), dtype, gen=gen, strides=strides, offset=offset)


def _make(
    gen: torch.Generator,
    n: int = 8,
    widths: Sequence[int] = (576,),
    *,
    dtype: torch.dtype = BF16,
    cache_dtype: torch.dtype | None = None,
    blocks: int = 3,
    block_size: int = 4,
    slots: list[int] | None = None,
    repeated: bool = False,
    slot_dtype: torch.dtype = torch.int32,
    slot_stride: int = 1,
    row_gap: int = 0,
    gap: int = 0,
    offset: int = 0,
) -> dict[str, Any]:
    """Widths in elements of ``dtype``."""
    into = cache_dtype or dtype
    item = torch.empty(0, dtype=dtype).element_size()
    into_item = torch.empty(0, dtype=into).element_size()
    return {
        "rows": [buffer((n, w), dtype, gen=gen, strides=(w + row_gap, 1)) for w in widths],
        "slots": make_slots(
            gen,
            n,
            blocks * block_size,
            dtype=slot_dtype,
            stride=slot_stride,
            values=slots,
            repeated=repeated,
        ),
        "caches": [
            _cache(gen, blocks, block_size, w * item // into_item, into, gap, offset)
            for w in widths
        ],
    }


def _views(gen: torch.Generator, width: int, at: int) -> dict[str, Any]:
    """The two parts of packed rows, as two caches."""
    packed = buffer((3, 4, width), BF16, gen=gen)
    args = _make(gen, 9, (at, width - at))
    return {**args, "caches": [packed[..., :at], packed[..., at:]]}


def _regions(gen: torch.Generator) -> dict[str, Any]:
    """Pages of 4 rows that hold all values first and all scales after them."""
    pages = buffer((3, 4 * (576 + 8)), U8, gen=gen)
    args = _make(gen, 9, (576, 8), dtype=U8)
    values = pages[:, : 4 * 576].view(3, 4, 576)
    scales = pages[:, 4 * 576 :].view(3, 4, 8)
    return {**args, "caches": [values, scales]}


def _layers(gen: torch.Generator) -> dict[str, Any]:
    """Two layers of one slab, page by page; one flat cache beside them."""
    slab = buffer((3, 2, 4, 132), U8, gen=gen)
    args = _make(gen, 9, (132, 132, 7), dtype=U8)
    flat = buffer((12, 7), U8, gen=gen, strides=(9, 1), offset=3)
    return {**args, "caches": [slab[:, 0], slab[:, 1], flat]}


def samples(tier: str) -> Iterator[Sample]:
    yield Sample("packed", _make)
    yield Sample("latent and rope", lambda g: _make(g, 9, (512, 64)))
    yield Sample("no tokens", lambda g: _make(g, 0, (16, 7)))
    yield Sample("one token", lambda g: _make(g, 1, slots=[11]))
    yield Sample("no rows", lambda g: _make(g, 3, (16,), blocks=0, slots=[0, -1, 2]))
    yield Sample("no bytes", lambda g: _make(g, 4, (0, 8)))
    yield Sample("slots outside", lambda g: _make(g, 8, (512, 64), slots=EDGE_SLOTS))
    yield Sample(
        "int64 slots outside int32",
        lambda g: _make(g, 8, slots=WIDE_SLOTS, slot_dtype=torch.int64),
    )
    yield Sample(
        "repeated slots", lambda g: _make(g, 8, (512, 64), slots=[3, 7, 3, 3, -1, 7, 0, 3])
    )
    yield Sample(
        "repeated slots, several threads",
        lambda g: _make(g, 300, repeated=True, blocks=10),
    )
    for width in (7, 16, 132, 512, 576, 584, 656, 1152):
        yield Sample(
            f"{width} bytes",
            partial(
                _make,
                n=9,
                widths=(width,),
                dtype=U8,
                block_size=5,
                gap=width + 1,
                offset=1,
                row_gap=3,
            ),
        )
    yield Sample("two parts of packed rows", lambda g: _views(g, 576, 512))
    yield Sample("values, then scales", _regions)
    yield Sample("layers of one slab", _layers)
    yield Sample(
        "bfloat16 to bytes, strided slots",
        lambda g: _make(g, 9, (512, 64), cache_dtype=U8, slot_stride=3),
    )
    yield Sample(
        "bytes to float8", lambda g: _make(g, 9, dtype=U8, cache_dtype=torch.float8_e4m3fn)
    )
    if tier != "nightly":
        return
    for widths, dtype, ids, gap, offset, block_size in product(
        ((656,), (512, 64), (7, 132, 1)),
        (U8, BF16, torch.float32, torch.int64),
        (torch.int32, torch.int64),
        (5, 4096),
        (0, 1),
        (1, 64),
    ):
        name = f"{widths} {dtype} {ids} gap {gap} offset {offset} block {block_size}"
        yield Sample(
            name.replace("torch.", ""),
            partial(
                _make,
                n=17,
                widths=widths,
                dtype=dtype,
                slot_dtype=ids,
                gap=gap,
                offset=offset,
                block_size=block_size,
                repeated=True,
            ),
        )


def _bad(name: str, error: str, by_value: bool = False, **change: Any) -> BadArgument:
    """A bad argument that replaces arguments by functions of all of them."""

    def edit(args: dict[str, Any]) -> None:
        args.update({key: make(args) for key, make in change.items()})

    return BadArgument(name, edit, f"scatter_rows: {error}", by_value)


BAD_ARGUMENTS = [
    _bad(
        "float slots",
        "slots must be int32 or int64, got float32",
        slots=lambda a: a["slots"].float(),
    ),
    _bad("0-D slots", "slots must be 1-D, got 0-D", slots=lambda a: a["slots"][0]),
    _bad(
        "no tensors",
        "rows must hold at least 1 tensor, got 0",
        rows=lambda a: [],
        caches=lambda a: [],
    ),
    _bad(
        "one cache too many",
        "caches must have length = 1 like rows, got 2",
        caches=lambda a: [a["caches"][0], torch.zeros(3, 4, 8)],
    ),
    _bad("3-D rows", "rows[0] must be 2-D, got 3-D", rows=lambda a: [a["rows"][0][None]]),
    _bad(
        "short second rows",
        "rows[1] must have tokens = 8 in dimension 0, got shape (7, 64)",
        rows=lambda a: [a["rows"][0], torch.zeros(7, 64)],
        caches=lambda a: [a["caches"][0], torch.zeros(3, 4, 64)],
    ),
    _bad(
        "rows by columns",
        "rows[0] must have stride 1 in its last dimension, got strides (1, 8)",
        rows=lambda a: [a["rows"][0].t().contiguous().t()],
    ),
    _bad(
        "4-D cache",
        "caches[0] must be 2-D or 3-D, got 4-D",
        caches=lambda a: [a["caches"][0][None]],
    ),
    _bad(
        "every other element",
        "caches[0] must have stride 1 in its last dimension, got strides (4608, 1152, 2)",
        caches=lambda a: [torch.zeros(3, 4, 1152, dtype=BF16)[..., ::2]],
    ),
    _bad(
        "overlapping pages",
        "caches[0] must have row-major strides without overlap, got strides (576, 576, 1)",
        caches=lambda a: [a["caches"][0].as_strided((3, 4, 576), (576, 576, 1))],
    ),
    _bad(
        "other row size",
        "caches[0] must have rows of 1152 bytes like rows[0], got 1024 bytes",
        caches=lambda a: [a["caches"][0][..., :512]],
    ),
    _bad(
        "caches of other heights",
        "caches[1] must have 12 rows like caches[0], got 8",
        rows=lambda a: [a["rows"][0], torch.zeros(8, 64)],
        caches=lambda a: [a["caches"][0], torch.zeros(2, 4, 64)],
    ),
    _bad(
        "rows in their cache",
        "caches[0] must not overlap rows[0], got shared memory",
        by_value=True,
        rows=lambda a: [a["caches"][0].flatten(0, 1)[4:]],
    ),
    _bad(
        "rows in another cache",
        "caches[0] must not overlap rows[1], got shared memory",
        by_value=True,
        rows=lambda a: [a["rows"][0], a["caches"][0].flatten(0, 1)[:8, :64]],
        caches=lambda a: [a["caches"][0], torch.zeros(3, 4, 64, dtype=BF16)],
    ),
    _bad(
        "one cache twice",
        "caches[1] must not overlap caches[0], got shared memory",
        by_value=True,
        rows=lambda a: [a["rows"][0], torch.zeros(8, 64, dtype=BF16)],
        caches=lambda a: [a["caches"][0], a["caches"][0][..., 512:]],
    ),
    _bad(
        "slots in the cache",
        "caches[0] must not overlap slots, got shared memory",
        by_value=True,
        slots=lambda a: a["caches"][0][0, 1, :16].view(torch.int32),
    ),
]


def device_unspecified(args: dict[str, Any]) -> dict[str, torch.Tensor]:
    masks: dict[str, torch.Tensor] = {}
    for j, cache in enumerate(args["caches"]):
        masks |= repeated_rows(f"caches[{j}]", cache, args["slots"])
    return masks
