"""What the samples of dequantize_c8 cannot show: the reader, and writer and reader together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import hisparse_ops

F8 = torch.float8_e4m3fn
ISAS = hisparse_ops.cpu_isas()
LAYOUTS = ["ascend", "core"]


@pytest.fixture
def restore_isa() -> Iterator[None]:
    isa = hisparse_ops.cpu_isa()
    yield
    hisparse_ops.set_cpu_isa(isa)


def read(
    cache: Tensor, rows: Tensor, layout: str, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    latent = torch.full((len(rows), 512), float("nan"), dtype=dtype)
    rope = torch.full((len(rows), 64), float("nan"), dtype=torch.bfloat16)
    hisparse_ops.dequantize_c8(cache, rows, latent, rope, layout=layout)
    return latent, rope


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_code(layout: str, isa: str, restore_isa: None) -> None:
    """All 256 codes by scatter_c8 and back, -0.0 and NaN too, one scale being no power of two."""
    hisparse_ops.set_cpu_isa(isa)
    codes = torch.arange(256, dtype=torch.uint8).repeat(2)[None]
    scales = torch.tensor([[1.0, 1.0, 0.75, 0.75]])
    rope = torch.randn(1, 64).bfloat16()
    cache = torch.zeros(1, 656, dtype=torch.uint8)
    slots = torch.tensor([0])
    hisparse_ops.scatter_c8(codes, rope, scales, slots, cache, layout=layout)
    latent, rope_back = read(cache, slots, layout)
    values = torch.arange(256, dtype=torch.uint8).view(F8).float()
    expected = torch.cat([values, values * 0.75])
    number = ~expected.isnan()
    assert torch.equal(latent[0, number].view(torch.int32), expected[number].view(torch.int32))
    assert bool((latent[0, ~number].view(torch.int32) == 0x7FC00000).all())
    assert torch.equal(rope_back, rope)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rule", ["amax", "pow2"])
def test_writer_and_reader_agree(rule: str, layout: str, isa: str, restore_isa: None) -> None:
    """vllm #49435, FlashMLA #184: a reader that takes the other contract is off by up to one half.

    The error is at most half the distance of two codes: 2^-4 of the value, or 2^-10 of the scale.
    """
    hisparse_ops.set_cpu_isa(isa)
    gen = torch.Generator().manual_seed(0)
    latent = torch.randn(64, 512, generator=gen) * 10.0 ** torch.randint(
        -3, 4, (64, 1), generator=gen
    )
    latent[0, :128] = torch.linspace(-336, 336, 128)
    rope, slots = torch.randn(64, 64, generator=gen).bfloat16(), torch.randperm(64, generator=gen)
    cache = torch.zeros(8, 8, 656, dtype=torch.uint8)
    hisparse_ops.quantize_scatter_c8(latent, rope, slots, cache, layout=layout, scale_rule=rule)
    back, rope_back = read(cache, slots, layout)
    assert torch.equal(rope_back, rope)
    at = {"ascend": 640, "core": 512}[layout]
    rows = cache.view(64, 656)[slots]
    scales = rows[:, at : at + 16].contiguous().view(torch.float32).repeat_interleave(128, 1)
    bound = torch.maximum(latent.abs() / 16, scales / 1024) * (1 + 2**-20)
    assert bool(((back - latent).abs() <= bound).all())
    exponent_only = 2.0 ** torch.floor(torch.log2(scales))
    wrong = back / scales * exponent_only
    assert bool(((wrong - latent).abs() <= bound).all()) == (rule == "pow2")


@pytest.mark.parametrize("rule", ["amax", "pow2"])
def test_zeros_come_back_as_zeros(rule: str) -> None:
    """vllm-xpu-kernels #475; signs are kept."""
    latent = torch.zeros(1, 512)
    latent[0, ::2] = -0.0
    rope, slots = torch.zeros(1, 64, dtype=torch.bfloat16), torch.tensor([0])
    cache = torch.full((1, 656), 255, dtype=torch.uint8)
    hisparse_ops.quantize_scatter_c8(latent, rope, slots, cache, layout="core", scale_rule=rule)
    back, _ = read(cache, slots, "core")
    assert torch.equal(back.view(torch.int32), latent.view(torch.int32))


def test_ids_outside_read_zeros() -> None:
    """Every output element is written, whatever the id."""
    cache = torch.full((2, 4, 656), 0x38, dtype=torch.uint8)
    ids = torch.tensor([-1, 8, 2**40, -(2**63), 7])
    latent, rope = read(cache, ids, "ascend")
    assert not latent[:4].view(torch.int32).any() and not rope[:4].view(torch.int16).any()
    assert bool((latent[4] != 0).all()) and bool((rope[4] != 0).all())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounding_to_16_bits(dtype: torch.dtype, isa: str, restore_isa: None) -> None:
    """Once, from the float32 product, as torch does: ties to even, subnormals, overflow."""
    hisparse_ops.set_cpu_isa(isa)
    n = 4000
    gen = torch.Generator().manual_seed(1)
    cache = torch.randint(0, 256, (n, 656), dtype=torch.uint8, generator=gen)
    exponents = torch.randint(-40, 20, (n, 4), generator=gen)
    scales = torch.ldexp(1 + torch.rand(n, 4, generator=gen), exponents).float()
    # Few mantissa bits, so that products are often exactly between two values.
    scales[::2] = scales[::2].bfloat16().float()
    cache[:, 512:528] = scales.view(torch.uint8)
    latent, _ = read(cache, torch.arange(n), "core", dtype)
    codes = cache[:, :512].contiguous().view(F8).float()
    expected = (codes * scales.repeat_interleave(128, 1)).to(dtype)
    number = ~expected.isnan()
    assert torch.equal(number, ~latent.isnan())
    assert torch.equal(latent[number].view(torch.int16), expected[number].view(torch.int16))


@pytest.mark.parametrize("row", [3_273_604, 6_547_207])
def test_rows_past_two_and_four_gigabytes(row: int, tmp_path: Path) -> None:
    """vllm #57602: the wrapped offset was read as zeros, without NaN, assert or error."""
    blocks = row // 64 + 2
    file = str(tmp_path / "cache")
    cache = torch.from_file(file, shared=True, size=blocks * 64 * 656, dtype=torch.uint8)
    pages = cache.view(blocks, 64, 656)
    # 1.0 in every code; the scales are what the same bytes are as float32.
    pages[row // 64, row % 64], pages[-1, -1] = 0x38, 0x38
    scale = float(torch.tensor([0x38383838], dtype=torch.int32).view(torch.float32))
    ids = torch.tensor([row, blocks * 64 - 1, 0, blocks * 64], dtype=torch.int32)
    latent, rope = read(pages, ids, "ascend")
    assert bool((latent[:2] == scale).all()) and bool((rope[:2].view(torch.int16) == 0x3838).all())
    assert not latent[2:].any() and not rope[2:].any()


def test_outputs_may_be_columns_of_one_tensor() -> None:
    """The 576-wide rows that attention without C8 takes, without a copy."""
    cache = torch.randint(0, 127, (3, 4, 656), dtype=torch.uint8)
    both = torch.empty(12, 576, dtype=torch.bfloat16)
    hisparse_ops.dequantize_c8(cache, torch.arange(12), both[:, :512], both[:, 512:], layout="core")
    latent, rope = read(cache, torch.arange(12), "core", torch.bfloat16)
    assert torch.equal(both.view(torch.int16), torch.cat([latent, rope], 1).view(torch.int16))
