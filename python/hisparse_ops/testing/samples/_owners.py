"""Owner tables and lists for the samples of both invalidate ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hisparse_ops.testing.buffers import buffer
from hisparse_ops.testing.samples import BadArgument

# Hot sizes either side of every vector length.
EDGES = (1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 64, 65)

INT32_MAX = 2**31 - 1


def owners(
    gen: torch.Generator,
    shapes: Sequence[tuple[int, int]],
    values: Tensor | None = None,
    row_gap: int = 0,
) -> list[Tensor]:
    """A ``[num_states, hot_size]`` table a shape, filled from ``values``: by default -3 .. 39."""
    if values is None:
        values = torch.arange(-3, 40)
    return [
        buffer(
            shape,
            torch.int32,
            gen=gen,
            strides=(shape[1] + row_gap, 1),
            values=values[torch.randint(0, len(values), shape, generator=gen)],
        )
        for shape in shapes
    ]


def id_list(
    gen: torch.Generator,
    values: Sequence[int] | Tensor,
    dtype: torch.dtype = torch.int32,
    stride: int = 1,
) -> Tensor:
    values = torch.as_tensor(values, dtype=torch.int64)
    return buffer((len(values),), dtype, gen=gen, strides=(stride,), values=values)


def spans(first: int, count: int, rows: int, step: int) -> Tensor:
    """``count`` spans of ``rows`` consecutive host rows, ``step`` rows from start to start."""
    return (first + torch.arange(count)[:, None] * step + torch.arange(rows)).flatten()


def bad_owners(op: str) -> list[BadArgument]:
    """What both ops refuse of their tables; the base has two, ``[4, 20]`` and ``[4, 33]``."""

    def change(group: int, edit: Any) -> Any:
        def apply(args: dict[str, Any]) -> None:
            args["owners"][group] = edit(args["owners"][group])

        return apply

    return [
        BadArgument(
            "owners dtype",
            change(1, lambda t: t.long()),
            f"{op}: owners[1] must be int32, got int64",
        ),
        BadArgument(
            "owners dimension",
            change(0, lambda t: t[0]),
            f"{op}: owners[0] must be 2-D, got 1-D",
        ),
        BadArgument(
            "owners column-major",
            change(1, lambda t: t.mT.contiguous().mT),
            f"{op}: owners[1] must have stride 1 in its last dimension, got strides (1, 4)",
        ),
        BadArgument(
            "state rows in one place",
            change(0, lambda t: t[:1].expand(4, 20)),
            f"{op}: owners[0] must have row-major strides without overlap, got strides (0, 1)",
        ),
        BadArgument(
            "two groups in one table",
            lambda a: a["owners"].append(a["owners"][0]),
            f"{op}: owners[2] must not overlap owners[0], got shared memory",
            by_value=True,
        ),
    ]


def in_owners(op: str, name: str) -> BadArgument:
    """A list that stands in the second table."""

    def change(args: dict[str, Any]) -> None:
        args[name] = args["owners"][1][2, : len(args[name])]

    error = f"{op}: {name} must not overlap owners[1], got shared memory"
    return BadArgument(f"{name} in a table", change, error, by_value=True)
