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
    latent_values,
    make_cache,
    make_part,
    make_slots,
    odd_values,
)

F8 = torch.float8_e4m3fn
BF16 = torch.bfloat16


def _make(
    gen: torch.Generator,
    n: int = 8,
    layout: str = "ascend",
    scale_rule: str = "amax",
    *,
    latent: torch.dtype = BF16,
    rope: torch.dtype = BF16,
    kind: str = "values",
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
    # Of any bits, NaN payloads and subnormals among them, unless values are asked for.
    make = {"values": latent_values, "odd": odd_values}.get(kind)
    values = None if make is None else make(gen, n).to(latent)
    return {
        "latent": make_part(gen, n, 512, latent, values, row_gap=row_gap, offset=offset),
        "rope": make_part(gen, n, 64, rope, row_gap=row_gap, offset=offset),
        "slots": to,
        "cache": into,
        "layout": layout,
        "scale_rule": scale_rule,
    }


def samples(tier: str) -> Iterator[Sample]:
    for layout, rule in product(("ascend", "core"), ("amax", "pow2")):
        yield Sample(f"{layout} {rule}", partial(_make, layout=layout, scale_rule=rule))
    yield Sample("no tokens", lambda g: _make(g, 0))
    yield Sample("one token", lambda g: _make(g, 1, "core", "pow2", slots=[11]))
    yield Sample("no rows", lambda g: _make(g, 3, blocks=0, slots=[0, -1, 2]))
    yield Sample("slots outside", lambda g: _make(g, 8, slots=EDGE_SLOTS))
    yield Sample(
        "int64 slots outside int32",
        lambda g: _make(g, 8, "core", "pow2", slots=WIDE_SLOTS, slot_dtype=torch.int64),
    )
    yield Sample("repeated slots", lambda g: _make(g, 8, slots=[3, 7, 3, 3, -1, 7, 0, 3]))
    yield Sample(
        "repeated slots, several threads",
        lambda g: _make(g, 200, "core", repeated=True, blocks=10),
    )
    for latent, rule in product((BF16, torch.float16, torch.float32), ("amax", "pow2")):
        name = str(latent).removeprefix("torch.")
        yield Sample(
            f"odd {name} {rule}",
            partial(
                _make,
                n=4,
                layout="core",
                scale_rule=rule,
                latent=latent,
                kind="odd",
                slots=[3, 1, 0, 2],
            ),
        )
        yield Sample(
            f"any {name} bits {rule}",
            partial(_make, scale_rule=rule, latent=latent, kind="bits", dtype=torch.int8),
        )
    yield Sample(
        "page gap, unaligned", lambda g: _make(g, 9, gap=1001, offset=1, block_size=5, row_gap=3)
    )
    yield Sample(
        "rows apart, strided slots",
        lambda g: _make(
            g, 9, "core", "pow2", latent=torch.float32, row_gap=5, slot_stride=3, dtype=F8
        ),
    )
    yield Sample(
        "flat, float8",
        lambda g: _make(g, 9, latent=torch.float16, dtype=F8, flat=True, rope=torch.float16),
    )
    if tier != "nightly":
        return
    for layout, rule, latent, dtype, ids, gap, flat in product(
        ("ascend", "core"),
        ("amax", "pow2"),
        (BF16, torch.float16, torch.float32),
        (F8, torch.uint8, torch.int8),
        (torch.int32, torch.int64),
        (0, 656 * 3 + 1),
        (False, True),
    ):
        name = f"{layout} {rule} {latent} to {dtype} {ids} gap {gap}{' flat' if flat else ''}"
        yield Sample(
            name.replace("torch.", ""),
            partial(
                _make,
                n=11,
                layout=layout,
                scale_rule=rule,
                latent=latent,
                kind="odd",
                slot_dtype=ids,
                dtype=dtype,
                gap=gap,
                flat=flat,
                blocks=5,
            ),
        )


def _bad(name: str, error: str, by_value: bool = False, **change: Any) -> BadArgument:
    """A bad argument that replaces arguments by functions of all of them."""

    def edit(args: dict[str, Any]) -> None:
        args.update({key: make(args) for key, make in change.items()})

    return BadArgument(name, edit, f"quantize_scatter_c8: {error}", by_value)


_CACHE = "cache must be uint8 or int8 or float8_e4m3fn, got"

BAD_ARGUMENTS = [
    _bad(
        "float slots",
        "slots must be int32 or int64, got float32",
        slots=lambda a: a["slots"].float(),
    ),
    _bad("2-D slots", "slots must be 1-D, got 2-D", slots=lambda a: a["slots"][None]),
    _bad(
        "float64 latent",
        "latent must be bfloat16 or float16 or float32, got float64",
        latent=lambda a: a["latent"].double(),
    ),
    _bad("1-D latent", "latent must be 2-D, got 1-D", latent=lambda a: a["latent"][0]),
    _bad(
        "short latent",
        "latent must have tokens = 8 in dimension 0, got shape (7, 512)",
        latent=lambda a: a["latent"][:7],
    ),
    _bad(
        "latent with rope",
        "latent must have width = 512 in dimension 1, got shape (8, 576)",
        latent=lambda a: torch.cat([a["latent"], a["rope"]], 1),
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
        "short rope",
        "rope must have tokens = 8 in dimension 0, got shape (1, 64)",
        rope=lambda a: a["rope"][:1],
    ),
    _bad(
        "cache of the other encoding",
        f"{_CACHE} float8_e4m3fnuz",
        cache=lambda a: a["cache"].view(torch.float8_e4m3fnuz),
    ),
    _bad("bfloat16 cache", f"{_CACHE} bfloat16", cache=lambda a: a["cache"].view(BF16)),
    _bad(
        "padded cache rows",
        "cache must have row_bytes = 656 in dimension 1, got shape (12, 672)",
        cache=lambda a: torch.zeros(12, 672, dtype=torch.uint8),
    ),
    _bad(
        "one page seen three times",
        "cache must have row-major strides without overlap, got strides (0, 656, 1)",
        cache=lambda a: a["cache"][:1].expand(3, 4, 656),
    ),
    _bad("layout", 'layout must be "ascend" or "core", got "flat"', layout=lambda a: "flat"),
    _bad(
        "scale rule",
        'scale_rule must be "amax" or "pow2", got "ue8m0"',
        scale_rule=lambda a: "ue8m0",
    ),
    _bad(
        "latent in the cache",
        "cache must not overlap latent, got shared memory",
        by_value=True,
        latent=lambda a: a["cache"].flatten()[-1024:].view(BF16).expand(8, 512),
    ),
    _bad(
        "rope in the cache",
        "cache must not overlap rope, got shared memory",
        by_value=True,
        rope=lambda a: a["cache"].flatten(0, 1)[4:, 512:640].view(BF16),
    ),
    _bad(
        "slots in the cache",
        "cache must not overlap slots, got shared memory",
        by_value=True,
        slots=lambda a: a["cache"][0, 0, :32].view(torch.int32),
    ),
]


def device_unspecified(args: dict[str, Any]) -> dict[str, torch.Tensor]:
    return repeated_rows("cache", args["cache"], args["slots"])
