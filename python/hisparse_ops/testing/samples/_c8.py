"""Arguments that the samples of the C8 ops share."""

from __future__ import annotations

import torch
from torch import Tensor

from hisparse_ops.testing.buffers import buffer

ROW_BYTES = 656


def make_cache(
    gen: torch.Generator,
    blocks: int = 3,
    block_size: int = 4,
    *,
    dtype: torch.dtype = torch.uint8,
    gap: int = 0,
    row_gap: int = 0,
    offset: int = 0,
    flat: bool = False,
) -> Tensor:
    """Rows of random bytes; gaps and offset in bytes, so an odd one leaves rows unaligned."""
    row_stride = ROW_BYTES + row_gap
    if flat:
        return buffer(
            (blocks * block_size, ROW_BYTES),
            dtype,
            gen=gen,
            strides=(row_stride, 1),
            offset=offset,
        )
    strides = (block_size * row_stride + gap, row_stride, 1)
    return buffer((blocks, block_size, ROW_BYTES), dtype, gen=gen, strides=strides, offset=offset)


def make_part(
    gen: torch.Generator,
    n: int,
    width: int,
    dtype: torch.dtype,
    values: Tensor | None = None,
    *,
    row_gap: int = 0,
    offset: int = 0,
) -> Tensor:
    """One ``[n, width]`` argument; random bits without values."""
    strides = (width + row_gap, 1)
    return buffer((n, width), dtype, gen=gen, strides=strides, offset=offset, values=values)


def make_slots(
    gen: torch.Generator,
    n: int,
    rows: int,
    *,
    dtype: torch.dtype = torch.int32,
    stride: int = 1,
    values: list[int] | None = None,
    repeated: bool = False,
) -> Tensor:
    """Distinct slots in random order with a third of padding, any slots, or the values given."""
    if repeated:
        chosen = torch.randint(-3, rows + 3, (n,), generator=gen)
    elif values is None:
        distinct = torch.randperm(max(rows, n), generator=gen)[:n]
        padding = torch.rand(n, generator=gen) < 1 / 3
        distinct[padding | (distinct >= rows)] = -1
        chosen = distinct
    else:
        chosen = torch.tensor(values, dtype=torch.int64)
    return buffer((n,), dtype, gen=gen, strides=(stride,), values=chosen)


EDGE_SLOTS = [-1, 5, -(2**31), 12, 2**31 - 1, 0, 11, -7]
"""For a cache of 12 rows: only 5, 0 and 11 are inside."""

WIDE_SLOTS = [2**32 + 5, -(2**63), 2**63 - 1, 5 - 2**32, 2**40, 11, -1, 2**31]
"""Int64 slots whose low 32 bits would be inside."""


def latent_values(gen: torch.Generator, n: int) -> Tensor:
    """Latent rows with magnitudes from 1e-8 to 1e4 over the tiles."""
    magnitudes = 10.0 ** torch.randint(-8, 5, (n, 4, 1), generator=gen)
    return (torch.randn(n, 4, 128, generator=gen) * magnitudes).view(n, 512)


def odd_values(gen: torch.Generator, n: int) -> Tensor:
    """Latent rows with tiles of zeros, NaN of both signs, infinities, and values between codes."""
    inf, nan = float("inf"), float("nan")
    values = latent_values(gen, n).view(n * 4, 128)
    # Of both signs, exactly between two codes when the scale is 1 (amax 448), and next to that.
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    halves = (codes[1:] + codes[:-1]) / 2
    around = torch.stack([halves, halves * (1 + 2**-8), halves * (1 - 2**-8)], 1)[:, :, None]
    between = torch.cat([around, -around], 2).flatten()
    specials = [
        torch.zeros(128),
        -torch.zeros(128),
        torch.full((128,), nan),
        torch.tensor([nan, -nan, inf, -inf]).repeat(32),
        torch.tensor([-0.0, 0.0, 1.0, -1.0, nan, inf, 1e6, -1e6]).repeat(16),
        torch.tensor([448.0, -448.0, 447.0, -0.0]).repeat(32),
        torch.tensor([336.0] + [0.75] * 127),
        *(torch.cat([torch.tensor([448.0, 0.0]), part]) for part in torch.split(between, 126)),
    ]
    for i, special in enumerate(specials[: n * 4]):
        values[i] = special
    return values.view(n, 512)
