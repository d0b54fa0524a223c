"""Caches and plans for the samples of both gather ops."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hisparse_ops.testing.buffers import buffer

# Bytes: C8 and BF16 rows, their parts, 584 (a C8 row with 4-byte scales), 132 (an indexer key), and odd ones.
WIDTHS = (656, 576, 1152, 584, 512, 132, 16, 7)


def caches(
    gen: torch.Generator,
    *,
    dtype: torch.dtype = torch.uint8,
    host_dtype: torch.dtype | None = None,
    row_bytes: int = 656,
    host_shape: tuple[int, ...] = (24,),
    hot_shape: tuple[int, ...] = (5, 4),
    row_gap: int = 0,
    page_gap: int = 0,
    offset: int = 0,
) -> dict[str, Any]:
    """Host and hot cache of random bytes; gaps are elements after every row and after every page."""

    def cache(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        width = row_bytes // torch.empty(0, dtype=dtype).element_size()
        row = width + row_gap
        strides = (shape[-1] * row + page_gap, row, 1)[-len(shape) - 1 :]
        return buffer((*shape, width), dtype, gen=gen, strides=strides, offset=offset)

    return {
        "host_cache": cache(host_shape, host_dtype or dtype),
        "hot_cache": cache(hot_shape, dtype),
    }


def grid(
    gen: torch.Generator,
    values: Tensor,
    dtype: torch.dtype = torch.int32,
    layout: str = "contiguous",
) -> Tensor:
    """A ``[rows, top_k]`` tensor of ids: contiguous, with both strides larger, or column-major."""
    rows, top_k = values.shape
    strides = {"contiguous": (top_k, 1), "strided": (2 * top_k + 5, 2), "columns": (1, rows)}
    return buffer((rows, top_k), dtype, gen=gen, strides=strides[layout], values=values)


def plan(
    gen: torch.Generator,
    args: dict[str, Any],
    rows: int,
    top_k: int,
    dtype: torch.dtype = torch.int32,
    layout: str = "contiguous",
) -> dict[str, Any]:
    """Random rows of both caches, with repeated hot rows, -1 and rows past the end among them."""
    host, hot = (math.prod(args[name].shape[:-1]) for name in ("host_cache", "hot_cache"))
    host_rows = torch.randint(-2, host + 2, (rows, top_k), generator=gen)
    hot_rows = torch.randint(-2, hot + 2, (rows, top_k), generator=gen)
    return {
        "host_rows": grid(gen, host_rows, dtype, layout),
        "hot_rows": grid(gen, hot_rows, dtype, layout),
    }


def hot_bytes(args: dict[str, Any], *shape: int) -> Tensor:
    """int32 elements that stand in the hot cache."""
    hot_cache: Tensor = args["hot_cache"]
    return hot_cache.view(torch.int32)[0, 0, : math.prod(shape)].view(shape)
