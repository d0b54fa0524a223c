from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from hisparse_ops.testing.buffers import buffer
from hisparse_ops.testing.samples import BadArgument, Sample
from hisparse_ops.testing.samples._c8 import (
    EDGE_SLOTS,
    WIDE_SLOTS,
    make_cache,
    make_part,
    make_slots,
)

F8 = torch.float8_e4m3fn
BF16 = torch.bfloat16
F16 = torch.float16
SCALES_AT = {"ascend": 640, "core": 512}


def _set_scales(gen: torch.Generator, cache: Tensor, layout: str) -> None:
    """Scales of ordinary size instead of random bits; most of them are no powers of two."""
    at = SCALES_AT[layout]
    values = torch.exp(torch.randn(*cache.shape[:-1], 4, generator=gen) * 4)
    cache.view(torch.uint8)[..., at : at + 16] = values.view(torch.uint8)


def _make(
    gen: torch.Generator,
    n: int = 8,
    layout: str = "ascend",
    *,
    latent: torch.dtype = torch.float32,
    rope: torch.dtype = BF16,
    any_scales: bool = False,
    ids: list[int] | None = None,
    id_dtype: torch.dtype = torch.int32,
    id_stride: int = 1,
    out_gap: int = 0,
    **cache: Any,
) -> dict[str, Any]:
    source = make_cache(gen, **cache)
    if not any_scales:
        _set_scales(gen, source, layout)
    rows = source.shape[0] if source.dim() == 2 else source.shape[0] * source.shape[1]
    return {
        "cache": source,
        "row_ids": make_slots(gen, n, rows, dtype=id_dtype, stride=id_stride, values=ids),
        "latent": make_part(gen, n, 512, latent, row_gap=out_gap, offset=out_gap),
        "rope": make_part(gen, n, 64, rope, row_gap=out_gap, offset=out_gap),
        "layout": layout,
    }


def _joined(gen: torch.Generator) -> dict[str, Any]:
    """Latent and rope as columns of one tensor."""
    args = _make(gen, 8, "core", latent=BF16)
    both = buffer((8, 576), BF16, gen=gen)
    return {**args, "latent": both[:, :512], "rope": both[:, 512:]}


def _all_codes(gen: torch.Generator, latent: torch.dtype, scales: list[float]) -> dict[str, Any]:
    """Every code twice in every row, with scales of all kinds."""
    args = _make(gen, 3, "core", latent=latent, ids=[2, 0, 1], blocks=1, block_size=3)
    cache = args["cache"]
    cache[..., :512] = torch.arange(512).to(torch.uint8)
    values = torch.tensor(scales).view(1, 3, 4)
    cache[..., 512:528] = values.view(torch.uint8)
    return args


def samples(tier: str) -> Iterator[Sample]:
    for layout in ("ascend", "core"):
        yield Sample(layout, partial(_make, layout=layout))
    yield Sample("no tokens", lambda g: _make(g, 0))
    yield Sample("one token", lambda g: _make(g, 1, "core", ids=[11]))
    yield Sample("no rows", lambda g: _make(g, 3, blocks=0, ids=[0, -1, 2]))
    yield Sample("ids outside", lambda g: _make(g, 8, latent=BF16, ids=EDGE_SLOTS))
    yield Sample(
        "int64 ids outside int32",
        lambda g: _make(g, 8, "core", ids=WIDE_SLOTS, id_dtype=torch.int64),
    )
    yield Sample("one row many times", lambda g: _make(g, 9, "core", ids=[7] * 9))
    yield Sample("several threads", lambda g: _make(g, 150, latent=BF16, blocks=20))
    yield Sample("columns of one tensor", _joined)
    # Products halfway between two values of the narrow types, the lower one even or odd.
    ties = [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11, 1 + 3 * 2.0**-11]
    for dtype in (BF16, torch.float16):
        yield Sample(f"ties, {dtype}", partial(_all_codes, latent=dtype, scales=3 * ties))
    nan, inf = float("nan"), float("inf")
    scales = [1.0, 0.75, 3e38, 2.0**-149, 0.0, -0.0, inf, -inf, nan, -1.5, 146.25, 2.0**-20]
    for latent in (torch.float32, BF16, F16):
        name = str(latent).removeprefix("torch.")
        yield Sample(f"all codes to {name}", partial(_all_codes, latent=latent, scales=scales))
        yield Sample(
            f"any bits to {name}",
            partial(_make, n=9, latent=latent, any_scales=True, dtype=F8),
        )
    yield Sample(
        "page gap, unaligned",
        lambda g: _make(g, 9, gap=1001, offset=1, block_size=5, row_gap=1, any_scales=True),
    )
    yield Sample(
        "rows apart, strided ids",
        lambda g: _make(g, 9, "core", latent=F16, out_gap=5, id_stride=3, rope=torch.int16),
    )
    yield Sample(
        "flat, int8", lambda g: _make(g, 9, latent=BF16, dtype=torch.int8, flat=True, rope=F16)
    )
    if tier != "nightly":
        return
    for layout, latent, dtype, ids, gap, flat in product(
        ("ascend", "core"),
        (torch.float32, BF16, F16),
        (F8, torch.uint8, torch.int8),
        (torch.int32, torch.int64),
        (0, 656 * 3 + 1),
        (False, True),
    ):
        name = f"{layout} {dtype} to {latent} {ids} gap {gap}{' flat' if flat else ''}"
        yield Sample(
            name.replace("torch.", ""),
            partial(
                _make,
                n=17,
                layout=layout,
                latent=latent,
                dtype=dtype,
                id_dtype=ids,
                gap=gap,
                flat=flat,
                any_scales=True,
                blocks=5,
            ),
        )


def _bad(name: str, error: str, by_value: bool = False, **change: Any) -> BadArgument:
    """A bad argument that replaces arguments by functions of all of them."""

    def edit(args: dict[str, Any]) -> None:
        args.update({key: make(args) for key, make in change.items()})

    return BadArgument(name, edit, f"dequantize_c8: {error}", by_value)


_CACHE = "cache must be uint8 or int8 or float8_e4m3fn, got"

BAD_ARGUMENTS = [
    _bad(
        "cache of the other encoding",
        f"{_CACHE} float8_e4m3fnuz",
        cache=lambda a: a["cache"].view(torch.float8_e4m3fnuz),
    ),
    _bad("float32 cache", f"{_CACHE} float32", cache=lambda a: a["cache"].float()),
    _bad("1-D cache", "cache must be 2-D or 3-D, got 1-D", cache=lambda a: a["cache"][0, 0]),
    _bad(
        "narrow cache rows",
        "cache must have row_bytes = 656 in dimension 2, got shape (3, 4, 640)",
        cache=lambda a: a["cache"][..., :640],
    ),
    _bad(
        "float row ids",
        "row_ids must be int32 or int64, got float32",
        row_ids=lambda a: a["row_ids"].float(),
    ),
    _bad("2-D row ids", "row_ids must be 1-D, got 2-D", row_ids=lambda a: a["row_ids"][None]),
    _bad(
        "float64 latent",
        "latent must be bfloat16 or float16 or float32, got float64",
        latent=lambda a: a["latent"].double(),
    ),
    _bad("3-D latent", "latent must be 2-D, got 3-D", latent=lambda a: a["latent"][None]),
    _bad(
        "short latent",
        "latent must have tokens = 8 in dimension 0, got shape (7, 512)",
        latent=lambda a: a["latent"][:7],
    ),
    _bad(
        "narrow latent",
        "latent must have width = 512 in dimension 1, got shape (8, 128)",
        latent=lambda a: a["latent"][:, :128],
    ),
    _bad(
        "one latent row for all",
        "latent must have row-major strides without overlap, got strides (0, 1)",
        latent=lambda a: a["latent"][:1].expand(8, 512),
    ),
    _bad(
        "latent by columns",
        "latent must have stride 1 in its last dimension, got strides (1, 8)",
        latent=lambda a: a["latent"].t().contiguous().t(),
    ),
    _bad(
        "float32 rope",
        "rope must be bfloat16 or float16 or int16, got float32",
        rope=lambda a: a["rope"].float(),
    ),
    _bad(
        "one rope row for all",
        "rope must have row-major strides without overlap, got strides (0, 1)",
        rope=lambda a: a["rope"][:1].expand(8, 64),
    ),
    _bad("layout", 'layout must be "ascend" or "core", got "packed"', layout=lambda a: "packed"),
    _bad(
        "latent in the cache",
        "latent must not overlap cache, got shared memory",
        by_value=True,
        cache=lambda a: a["latent"].view(torch.uint8).flatten()[:7872].view(12, 656),
    ),
    _bad(
        "row ids in latent",
        "latent must not overlap row_ids, got shared memory",
        by_value=True,
        row_ids=lambda a: a["latent"].view(torch.int32)[7, 504:],
    ),
    _bad(
        "rope in the cache",
        "rope must not overlap cache, got shared memory",
        by_value=True,
        cache=lambda a: a["rope"].view(torch.uint8).flatten()[-656:].view(1, 656),
    ),
    _bad(
        "row ids in rope",
        "rope must not overlap row_ids, got shared memory",
        by_value=True,
        row_ids=lambda a: a["rope"].view(torch.int32).flatten()[:8],
    ),
    _bad(
        "rope in latent",
        "rope must not overlap latent, got shared memory",
        by_value=True,
        rope=lambda a: a["latent"].view(BF16)[:, -64:],
    ),
]
