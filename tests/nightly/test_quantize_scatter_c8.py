"""What the samples of quantize_scatter_c8 cannot show."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import hisparse_ops

INF, NAN = float("inf"), float("nan")
ISAS = hisparse_ops.cpu_isas()
RULES = ["amax", "pow2"]
LEAST = {"amax": 2.0**-116, "pow2": 2.0**-13}


@pytest.fixture
def restore_isa() -> Iterator[None]:
    isa = hisparse_ops.cpu_isa()
    yield
    hisparse_ops.set_cpu_isa(isa)


def quantize(latent: Tensor, scale_rule: str) -> tuple[Tensor, Tensor]:
    """Codes ``[n, 4, 128]`` and scales ``[n, 4]``."""
    n = latent.shape[0]
    rope = torch.zeros(n, 64, dtype=torch.bfloat16)
    cache = torch.zeros(n, 656, dtype=torch.uint8)
    slots = torch.arange(n)
    hisparse_ops.quantize_scatter_c8(
        latent, rope, slots, cache, layout="core", scale_rule=scale_rule
    )
    scales = cache[:, 512:528].contiguous().view(torch.float32)
    return cache[:, :512].view(n, 4, 128), scales


def quantize_tile(values: list[float], scale_rule: str) -> tuple[list[int], float]:
    """Codes and scale of one tile of the given values, then zeros."""
    latent = torch.zeros(1, 512)
    latent[0, 128 : 128 + len(values)] = torch.tensor(values)
    codes, scales = quantize(latent, scale_rule)
    return codes[0, 1, : len(values)].tolist(), float(scales[0, 1])


def nearest_codes(ratios: Tensor) -> Tensor:
    """Codes of float32 values, by comparison with the exact middles between two codes."""
    values = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    middles = (values[1:] + values[:-1]) / 2
    magnitude = ratios.double().abs()
    below = torch.searchsorted(middles, magnitude, right=False)
    above = torch.searchsorted(middles, magnitude, right=True)
    # They differ where the value is a middle: the even code is the right one.
    code = torch.where(below % 2 == 0, below, above)
    return (code + torch.where(ratios.signbit(), 128, 0)).to(torch.uint8)


def test_scale_contract_of_both_rules() -> None:
    """vllm #49435, #54563: amax 336 is 0.75 by one contract and 1.0 by the other."""
    assert quantize_tile([336.0, -1.0], "amax") == ([0x7E, 0xBB], 0.75)
    # 336 is half way between 320 and 352: the even code.
    assert quantize_tile([336.0, -1.0], "pow2") == ([0x7A, 0xB8], 1.0)


@pytest.mark.parametrize("rule", RULES)
def test_zero_tile_has_a_scale_to_divide_by(rule: str) -> None:
    """vllm-xpu-kernels #475: no division by zero, and -0.0 keeps its sign."""
    assert quantize_tile([0.0, -0.0], rule) == ([0x00, 0x80], LEAST[rule])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("isa", ISAS)
def test_nan_and_infinity_do_not_spoil_their_tile(rule: str, isa: str, restore_isa: None) -> None:
    """vllm-xpu-kernels #475: the finite values decide the scale."""
    hisparse_ops.set_cpu_isa(isa)
    values = [448.0, -1.0, NAN, -NAN, INF, -INF]
    assert quantize_tile(values, rule) == ([0x7E, 0xB8, 0x7F, 0xFF, 0x7E, 0xFE], 1.0)
    assert quantize_tile([NAN, INF, -INF], rule) == ([0x7F, 0x7E, 0xFE], LEAST[rule])


@pytest.mark.parametrize("amax", [448.0, 1e6, 1e-8, 3.4e38, 1e-30, 0.3])
@pytest.mark.parametrize("rule", RULES)
def test_largest_value_is_never_past_the_largest_code(amax: float, rule: str) -> None:
    """vllm-xpu-kernels #475: scale inverted, or no clamp to 448."""
    amax = float(torch.tensor(amax))
    codes, scale = quantize_tile([amax, -amax], rule)
    assert codes[1] == codes[0] | 0x80 and codes[0] <= 0x7E
    ratio = float(torch.tensor(amax) / 448)
    if rule == "amax":
        assert (codes[0], scale) == (0x7E, ratio)
    else:
        assert scale == LEAST[rule] or scale / 2 < ratio <= scale


def test_every_tile_has_its_own_scale() -> None:
    """vllm #37054: the scale of something else was applied, or one twice."""
    latent = torch.ones(1, 4, 128) * torch.tensor([448.0, 44.8, 4.48, 0.448]).view(1, 4, 1)
    codes, scales = quantize(latent.view(1, 512), "amax")
    assert bool((codes == 0x7E).all())
    assert torch.equal(scales[0], torch.tensor([448.0, 44.8, 4.48, 0.448]) / 448)


def test_exponent_of_pow2_is_exact() -> None:
    """A power of two is its own scale, the next float32 has twice that; float log2 misses it."""
    powers = 2.0 ** torch.arange(-13, 119)
    for ratio, scale in ((powers, powers), (torch.nextafter(powers, 2 * powers), 2 * powers)):
        latent = torch.zeros(len(powers), 512)
        # The product is rounded: take the float32 that gives the ratio back.
        amax = ratio * 448
        latent[:, 0] = torch.where(amax / 448 < ratio, torch.nextafter(amax, 2 * amax), amax)
        assert torch.equal(latent[:, 0] / 448, ratio)
        _, scales = quantize(latent, "pow2")
        assert torch.equal(scales[:, 0], scale)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_of_every_16_bit_pattern(dtype: torch.dtype, isa: str, restore_isa: None) -> None:
    """Against exact middles between codes, in tiles whose scale is 1."""
    hisparse_ops.set_cpu_isa(isa)
    patterns = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    # Larger finite values would make a scale above 1.
    patterns = patterns[patterns.isnan() | patterns.isinf() | (patterns.abs() <= 448)]
    patterns = torch.cat([patterns, torch.zeros(-len(patterns) % 127, dtype=dtype)]).view(-1, 127)
    tiles = torch.cat([torch.full((len(patterns), 1), 448, dtype=dtype), patterns], 1)
    tiles = torch.cat([tiles, tiles[: -len(tiles) % 4]])
    codes, scales = quantize(tiles.view(-1, 512), "amax")
    assert bool((scales == 1).all())
    exact = nearest_codes(tiles.float())
    nan = torch.where(tiles.view(torch.int16) < 0, 0xFF, 0x7F).to(torch.uint8)
    assert torch.equal(codes.reshape(-1, 128), torch.where(tiles.isnan(), nan, exact))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rule", RULES)
def test_rounding_around_every_middle(rule: str, isa: str, restore_isa: None) -> None:
    """Float32 values at, just below and just above every code and every middle between two."""
    hisparse_ops.set_cpu_isa(isa)
    values = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = torch.cat([values, (values[1:] + values[:-1]) / 2])
    points = torch.cat([middles, middles.nextafter(torch.tensor(INF)), middles.nextafter(-middles)])
    points = torch.cat([points, -points])
    points = points[points.abs() <= 448]
    points = torch.cat([points, torch.zeros(-len(points) % 127)]).view(-1, 127)
    tiles = torch.cat([torch.full((len(points), 1), 448.0), points], 1)
    tiles = torch.cat([tiles, tiles[: -len(tiles) % 4]])
    codes, scales = quantize(tiles.view(-1, 512), rule)
    assert bool((scales == 1).all())
    assert torch.equal(codes.reshape(-1, 128), nearest_codes(tiles))


@pytest.mark.parametrize("rule", RULES)
def test_quotient_is_divided_not_multiplied(rule: str) -> None:
    """x / scale and x * (1 / scale) differ, where the scale is no power of two."""
    latent = torch.randn(2000, 512, generator=torch.Generator().manual_seed(0))
    codes, scales = quantize(latent, rule)
    tiles, factor = latent.view(-1, 4, 128), scales[:, :, None]
    assert torch.equal(codes, nearest_codes(tiles / factor))
    if rule == "amax":
        assert not torch.equal(codes, nearest_codes(tiles * (1 / factor)))


@pytest.mark.parametrize("rule", RULES)
def test_agrees_with_the_torch_composite(rule: str) -> None:
    """On values without edge cases, as serving code spells it in a dozen torch calls."""
    latent = torch.randn(500, 512, generator=torch.Generator().manual_seed(1)).bfloat16()
    tiles = latent.float().view(-1, 4, 128)
    scale = tiles.abs().amax(-1, keepdim=True) / 448
    if rule == "pow2":
        scale = torch.exp2(torch.ceil(torch.log2(scale.clamp(min=1e-4))))
    expected = (tiles / scale).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    codes, scales = quantize(latent, rule)
    assert torch.equal(scales, scale[:, :, 0])
    assert torch.equal(codes, expected)


@pytest.mark.parametrize("isa", ISAS[1:])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_instruction_sets_agree_on_any_bits(
    dtype: torch.dtype, rule: str, isa: str, restore_isa: None
) -> None:
    gen = torch.Generator().manual_seed(2)
    raw = torch.randint(0, 256, (1000, 512 * dtype.itemsize), dtype=torch.uint8, generator=gen)
    if dtype == torch.float32:
        # Half of the rows within a range that leaves more than one value of a tile above zero.
        raw[::2, 3::4] = raw[::2, 3::4] & 0x85 | 0x38
    results = []
    for name in ("scalar", isa):
        hisparse_ops.set_cpu_isa(name)
        results.append(quantize(raw.view(dtype), rule))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1].view(torch.int32), results[1][1].view(torch.int32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rule", RULES)
def test_flushing_of_subnormals_changes_nothing(rule: str, isa: str, restore_isa: None) -> None:
    """Devices flush them; the least scales keep them out of the result."""
    hisparse_ops.set_cpu_isa(isa)
    magnitudes = 2.0 ** torch.linspace(-149, 0, 150).double()
    rows = magnitudes.view(-1, 1) * torch.linspace(-1, 1, 512).double()
    latent = torch.cat([rows, rows * 2.0**-100, rows.sqrt().nan_to_num()]).float()
    expected = quantize(latent, rule)
    assert torch.set_flush_denormal(True)
    try:
        # Few rows, so that they are done by this thread, whose mode it is.
        flushed = [quantize(part, rule) for part in latent.split(30)]
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(torch.cat([codes for codes, _ in flushed]), expected[0])
    assert torch.equal(torch.cat([scales for _, scales in flushed]), expected[1])


@pytest.mark.parametrize("layout, rope_at, scales_at", [("ascend", 512, 640), ("core", 528, 512)])
def test_padding_leaves_the_first_and_the_last_row(
    layout: str, rope_at: int, scales_at: int
) -> None:
    """vllm-ascend #16756, #17214: -1 wrote data, scales or both before the cache or to slot 0."""
    cache = torch.randint(0, 256, (2, 4, 656), dtype=torch.uint8)
    before = cache.clone()
    latent, rope = torch.full((3, 512), 896.0), torch.randn(3, 64).bfloat16()
    slots = torch.tensor([-1, 5, -1])
    hisparse_ops.quantize_scatter_c8(latent, rope, slots, cache, layout=layout, scale_rule="amax")
    row = cache[1, 1].clone()
    assert bool((row[:512] == 0x7E).all())
    assert row[scales_at : scales_at + 16].clone().view(torch.float32).tolist() == [2.0] * 4
    assert torch.equal(row[rope_at : rope_at + 128], rope[1].view(torch.uint8))
    cache[1, 1] = before[1, 1]
    assert torch.equal(cache, before)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_last_of_repeated_slots_wins(threads: int) -> None:
    """The order of tokens decides, not that of threads; vllm-ascend #16756 leaves it undefined."""
    n, before = 2000, torch.get_num_threads()
    latent = (torch.arange(n) + 1).float().view(n, 1).repeat(1, 512)
    rope, slots = torch.zeros(n, 64, dtype=torch.int16), torch.randint(0, 50, (n,))
    cache = torch.zeros(10, 5, 656, dtype=torch.uint8)
    torch.set_num_threads(threads)
    try:
        hisparse_ops.quantize_scatter_c8(
            latent, rope, slots, cache, layout="core", scale_rule="amax"
        )
    finally:
        torch.set_num_threads(before)
    scales = cache.view(50, 656)[:, 512:516].contiguous().view(torch.float32)[:, 0]
    last = {int(slot): i for i, slot in enumerate(slots)}
    for slot, token in last.items():
        assert scales[slot] == latent[token, 0] / 448


@pytest.mark.parametrize("row", [3_273_604, 6_547_207])
def test_rows_past_two_and_four_gigabytes(row: int, tmp_path: Path) -> None:
    """vllm #57602: row * 656 no longer fits int32 (uint32) from this row on."""
    blocks = row // 64 + 2
    file = str(tmp_path / "cache")
    cache = torch.from_file(file, shared=True, size=blocks * 64 * 656, dtype=torch.uint8)
    pages = cache.view(blocks, 64, 656)
    latent, rope = torch.ones(3, 512), torch.ones(3, 64, dtype=torch.int16)
    slots = torch.tensor([row, blocks * 64 - 1, blocks * 64], dtype=torch.int32)
    hisparse_ops.quantize_scatter_c8(latent, rope, slots, pages, layout="core", scale_rule="amax")
    for written in (pages[row // 64, row % 64], pages[-1, -1]):
        assert bool((written[:512] == 0x7E).all())
        assert torch.equal(written[528:], rope[0].view(torch.uint8))
    assert not cache[: 1 << 20].any()


@pytest.mark.nightly
def test_calls_do_not_leak() -> None:
    """torch's own conversion of a str argument loses a string a call: some 9 MB here."""
    program = """
import torch, hisparse_ops

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

latent, rope = torch.zeros(1, 512), torch.zeros(1, 64, dtype=torch.int16)
slots, cache = torch.tensor([-1]), torch.zeros(1, 656, dtype=torch.uint8)

def call(times):
    for _ in range(times):
        hisparse_ops.quantize_scatter_c8(
            latent, rope, slots, cache, layout="core", scale_rule="amax"
        )

call(1000)
before = resident()
call(100_000)
print(resident() - before)
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert int(run.stdout) < 4 << 20
