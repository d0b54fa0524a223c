from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import torch

from hisparse_ops.testing.samples import BadArgument, Sample, repeated_rows
from hisparse_ops.testing.samples._c8 import (
    EDGE_SLOTS,
    WIDE_SLOTS,
    make_cache,
    make_part,
    make_slots,
)

F8 = torch.float8_e4m3fn
BF16 = torch.bfloat16


def _make(
    gen: torch.Generator,
    n: int = 8,
    layout: str = "ascend",
    *,
    codes: torch.dtype = torch.uint8,
    rope: torch.dtype = BF16,
    slots: list[int] | None = None,
    repeated: bool = False,
    slot_dtype: torch.dtype = torch.int32,
    slot_stride: int = 1,
    row_gap: int = 0,
    offset: int = 0,
    **cache: Any,
) -> dict[str, Any]:
    into = make_cache(gen, **cache)
    rows = into.shape[0] if into.dim() == 2 else into.shape[0] * into.shape[1]
    to = make_slots(
        gen, n, rows, dtype=slot_dtype, stride=slot_stride, values=slots, repeated=repeated
    )
    return {
        "nope": make_part(gen, n, 512, codes, row_gap=row_gap, offset=offset),
        "rope": make_part(gen, n, 64, rope, row_gap=row_gap, offset=offset),
        "scales": make_part(gen, n, 4, torch.float32, row_gap=row_gap, offset=offset),
        "slots": to,
        "cache": into,
        "layout": layout,
    }


def samples(tier: str) -> Iterator[Sample]:
    for layout in ("ascend", "core"):
        yield Sample(layout, partial(_make, layout=layout))
    yield Sample("no tokens", lambda g: _make(g, 0))
    yield Sample("one token", lambda g: _make(g, 1, "core", slots=[11]))
    yield Sample("no rows", lambda g: _make(g, 3, blocks=0, slots=[0, -1, 2]))
    yield Sample("no token is kept", lambda g: _make(g, 3, "core", slots=[-1, 12, -9]))
    yield Sample("slots outside", lambda g: _make(g, 8, slots=EDGE_SLOTS))
    yield Sample(
        "int64 slots outside int32",
        lambda g: _make(g, 8, "core", slots=WIDE_SLOTS, slot_dtype=torch.int64),
    )
    yield Sample("repeated slots", lambda g: _make(g, 8, slots=[3, 7, 3, 3, -1, 7, 0, 3]))
    yield Sample(
        "repeated slots, several threads",
        lambda g: _make(g, 300, "core", repeated=True, blocks=10),
    )
    yield Sample(
        "page gap, unaligned", lambda g: _make(g, 9, gap=1001, offset=1, block_size=5, row_gap=3)
    )
    yield Sample(
        "rows apart, strided slots",
        lambda g: _make(g, 9, "core", row_gap=5, slot_stride=3, slot_dtype=torch.int64),
    )
    yield Sample(
        "flat, float8",
        lambda g: _make(g, 9, codes=F8, dtype=F8, flat=True, rope=torch.float16),
    )
    yield Sample(
        "int8 to float8, rope bits",
        lambda g: _make(g, 9, "core", codes=torch.int8, dtype=F8, rope=torch.int16),
    )
    if tier != "nightly":
        return
    for layout, codes, dtype, ids, gap, flat in product(
        ("ascend", "core"),
        (F8, torch.uint8, torch.int8),
        (F8, torch.uint8, torch.int8),
        (torch.int32, torch.int64),
        (0, 656 * 3 + 1),
        (False, True),
    ):
        name = f"{layout} {codes} to {dtype} {ids} gap {gap}{' flat' if flat else ''}"
        yield Sample(
            name.replace("torch.", ""),
            partial(
                _make,
                n=17,
                layout=layout,
                codes=codes,
                dtype=dtype,
                slot_dtype=ids,
                gap=gap,
                flat=flat,
                blocks=5,
            ),
        )


def _bad(name: str, error: str, by_value: bool = False, **change: Any) -> BadArgument:
    """A bad argument that replaces arguments by functions of all of them."""

    def edit(args: dict[str, Any]) -> None:
        args.update({key: make(args) for key, make in change.items()})

    return BadArgument(name, edit, f"scatter_c8: {error}", by_value)


_CACHE = "cache must be uint8 or int8 or float8_e4m3fn, got"
_NOPE = "nope must be float8_e4m3fn or uint8 or int8, got"

BAD_ARGUMENTS = [
    _bad(
        "float slots",
        "slots must be int32 or int64, got float32",
        slots=lambda a: a["slots"].float(),
    ),
    _bad("2-D slots", "slots must be 1-D, got 2-D", slots=lambda a: a["slots"][None]),
    _bad(
        "short slots",
        "nope must have tokens = 7 in dimension 0, got shape (8, 512)",
        slots=lambda a: a["slots"][:7],
    ),
    _bad(
        "nope of the other encoding",
        f"{_NOPE} float8_e4m3fnuz",
        nope=lambda a: a["nope"].view(torch.float8_e4m3fnuz),
    ),
    _bad("nope not quantised", f"{_NOPE} bfloat16", nope=lambda a: a["nope"].to(BF16)),
    _bad("3-D nope", "nope must be 2-D, got 3-D", nope=lambda a: a["nope"][None]),
    _bad(
        "narrow nope",
        "nope must have width = 512 in dimension 1, got shape (8, 511)",
        nope=lambda a: a["nope"][:, :511],
    ),
    _bad(
        "nope by columns",
        "nope must have stride 1 in its last dimension, got strides (1, 8)",
        nope=lambda a: a["nope"].t().contiguous().t(),
    ),
    _bad(
        "float32 rope",
        "rope must be bfloat16 or float16 or int16, got float32",
        rope=lambda a: a["rope"].float(),
    ),
    _bad(
        "short rope",
        "rope must have tokens = 8 in dimension 0, got shape (7, 64)",
        rope=lambda a: a["rope"][:7],
    ),
    _bad(
        "wide rope",
        "rope must have width = 64 in dimension 1, got shape (8, 128)",
        rope=lambda a: a["rope"].repeat(1, 2),
    ),
    _bad(
        "bfloat16 scales",
        "scales must be float32, got bfloat16",
        scales=lambda a: a["scales"].to(BF16),
    ),
    _bad(
        "one scale a row",
        "scales must have width = 4 in dimension 1, got shape (8, 1)",
        scales=lambda a: a["scales"][:, :1],
    ),
    _bad(
        "cache of the other encoding",
        f"{_CACHE} float8_e4m3fnuz",
        cache=lambda a: a["cache"].view(torch.float8_e4m3fnuz),
    ),
    _bad(
        "cache of two mantissa bits",
        f"{_CACHE} float8_e5m2",
        cache=lambda a: a["cache"].view(torch.float8_e5m2),
    ),
    _bad("bfloat16 cache", f"{_CACHE} bfloat16", cache=lambda a: a["cache"].view(BF16)),
    _bad("4-D cache", "cache must be 2-D or 3-D, got 4-D", cache=lambda a: a["cache"][None]),
    _bad(
        "padded cache rows",
        "cache must have row_bytes = 656 in dimension 2, got shape (3, 4, 672)",
        cache=lambda a: torch.zeros(3, 4, 672, dtype=torch.uint8),
    ),
    _bad(
        "one page seen three times",
        "cache must have row-major strides without overlap, got strides (0, 656, 1)",
        cache=lambda a: a["cache"][:1].expand(3, 4, 656),
    ),
    _bad("layout", 'layout must be "ascend" or "core", got "Core"', layout=lambda a: "Core"),
    _bad("no layout", 'layout must be "ascend" or "core", got ""', layout=lambda a: ""),
    _bad(
        "nope in the cache",
        "cache must not overlap nope, got shared memory",
        by_value=True,
        nope=lambda a: a["cache"].flatten(0, 1)[4:, :512],
    ),
    _bad(
        "rope in the cache",
        "cache must not overlap rope, got shared memory",
        by_value=True,
        rope=lambda a: a["cache"].flatten(0, 1)[:8, 512:640].view(BF16),
    ),
    _bad(
        "scales in the cache",
        "cache must not overlap scales, got shared memory",
        by_value=True,
        scales=lambda a: a["cache"].flatten(0, 1)[:8, 640:].view(torch.float32),
    ),
    _bad(
        "slots in the cache",
        "cache must not overlap slots, got shared memory",
        by_value=True,
        slots=lambda a: a["cache"][2, 3, 624:].view(torch.int32),
    ),
]


def device_unspecified(args: dict[str, Any]) -> dict[str, torch.Tensor]:
    return repeated_rows("cache", args["cache"], args["slots"])
