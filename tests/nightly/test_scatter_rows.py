"""What the samples of scatter_rows cannot show."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import hisparse_ops


def random_bytes(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def test_padding_leaves_the_first_and_the_last_row() -> None:
    """vllm-ascend #16756: -1 was cast to a huge offset, or written to slot 0 and restored."""
    latent, rope = random_bytes(2, 4, 1024), random_bytes(2, 4, 128)
    before = latent.clone(), rope.clone()
    rows = [random_bytes(3, 1024), random_bytes(3, 128)]
    hisparse_ops.scatter_rows(rows, torch.tensor([-1, 5, -1]), [latent, rope])
    for cache, old, source in zip((latent, rope), before, rows, strict=True):
        assert torch.equal(cache[1, 1], source[1])
        cache[1, 1] = old[1, 1]
        assert torch.equal(cache, old)


def test_pages_with_all_values_before_all_scales() -> None:
    """vllm #53592: a page of 4 rows holds 4 x 576 value bytes, then 4 x 8 scale bytes."""
    pages = torch.zeros(3, 4 * (576 + 8), dtype=torch.uint8)
    values = pages[:, : 4 * 576].view(3, 4, 576)
    scales = pages[:, 4 * 576 :].view(3, 4, 8)
    token = [torch.full((1, 576), 7, dtype=torch.uint8), torch.full((1, 8), 9, dtype=torch.uint8)]
    hisparse_ops.scatter_rows(token, torch.tensor([6]), [values, scales])
    expected = torch.zeros_like(pages)
    expected[1, 2 * 576 : 3 * 576] = 7
    expected[1, 4 * 576 + 2 * 8 : 4 * 576 + 3 * 8] = 9
    assert torch.equal(pages, expected)


def test_two_views_of_packed_rows_are_one_packed_row() -> None:
    whole = torch.zeros(3, 4, 576, dtype=torch.bfloat16)
    parts = whole.clone()
    rows, slots = torch.randn(9, 576).bfloat16(), torch.randperm(12)[:9].int()
    hisparse_ops.scatter_rows([rows], slots, [whole])
    sources, caches = [rows[:, :512], rows[:, 512:]], [parts[..., :512], parts[..., 512:]]
    hisparse_ops.scatter_rows(sources, slots, caches)
    assert torch.equal(whole, parts)


def test_layers_of_one_storage_stay_apart() -> None:
    """vllm #57019: later layers were bound to the base offset and overwrote earlier ones."""
    slab = torch.zeros(2, 3, 4, 656, dtype=torch.uint8)  # [layers, blocks, block_size, row]
    for layer in range(2):
        rows = torch.full((12, 656), layer + 1, dtype=torch.uint8)
        hisparse_ops.scatter_rows([rows], torch.arange(12), [slab[layer]])
    assert torch.equal(slab[0], torch.full_like(slab[0], 1))
    assert torch.equal(slab[1], torch.full_like(slab[1], 2))


@pytest.mark.parametrize("width", [512, 576, 584, 656, 1152, 132, 7])
def test_no_byte_past_the_width_of_a_row(width: int) -> None:
    """vllm #56314: rows taken to be 576 bytes wide ran 64 bytes past those of 512."""
    page = torch.zeros(width * 3 + 64, dtype=torch.uint8)
    cache = page[: width * 3].view(3, width)
    rows = torch.full((1, width), 255, dtype=torch.uint8)
    hisparse_ops.scatter_rows([rows], torch.tensor([1]), [cache])
    assert page.nonzero()[:, 0].tolist() == list(range(width, 2 * width))


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_last_of_repeated_slots_wins(threads: int) -> None:
    """The order of tokens decides, not that of threads; vllm-ascend #16756 leaves it undefined."""
    n, before = 2000, torch.get_num_threads()
    rows = torch.arange(n).view(n, 1).repeat(1, 72)
    slots = torch.randint(0, 50, (n,))
    cache = torch.full((10, 5, 72), -1)
    torch.set_num_threads(threads)
    try:
        hisparse_ops.scatter_rows([rows], slots, [cache])
    finally:
        torch.set_num_threads(before)
    last = {int(slot): i for i, slot in enumerate(slots)}
    assert cache.view(50, 72)[:, 0].tolist() == [last.get(slot, -1) for slot in range(50)]
    assert torch.equal(cache, cache[..., :1].expand_as(cache))


@pytest.mark.parametrize("width, row", [(576, 3_728_271), (1152, 1_864_136), (656, 6_547_207)])
def test_rows_past_two_and_four_gigabytes(width: int, row: int, tmp_path: Path) -> None:
    """vllm #57602: row * width in int32 wrapped, and zeros were read without an error."""
    blocks = row // 64 + 2
    file = str(tmp_path / "cache")
    cache = torch.from_file(file, shared=True, size=blocks * 64 * width, dtype=torch.uint8)
    pages = cache.view(blocks, 64, width)
    rows = random_bytes(3, width)
    slots = torch.tensor([row, blocks * 64 - 1, blocks * 64], dtype=torch.int32)
    hisparse_ops.scatter_rows([rows], slots, [pages])
    assert torch.equal(pages[row // 64, row % 64], rows[0])
    assert torch.equal(pages[-1, -1], rows[1])
    assert not cache[: 1 << 20].any()


def test_block_stride_past_two_gigabytes(tmp_path: Path) -> None:
    """vllm #46222: block * stride wrapped where other layers lie between two pages."""
    stride = 3 << 30
    file = str(tmp_path / "cache")
    slab = torch.from_file(file, shared=True, size=stride + 656, dtype=torch.uint8)
    cache = slab.as_strided((2, 1, 656), (stride, 656, 1))
    rows = random_bytes(1, 656)
    hisparse_ops.scatter_rows([rows], torch.tensor([1]), [cache])
    assert torch.equal(slab[stride:], rows[0])
    assert not slab[: 1 << 20].any()


@pytest.mark.parametrize("n, width", [(65_535, 16), (65_536, 16), (131_072, 16), (1025, 656)])
def test_many_tokens(n: int, width: int) -> None:
    """sglang #39548: one program a row fails from 65,536 rows on."""
    rows, slots = random_bytes(n, width), torch.randperm(n)
    cache = torch.zeros(n, width, dtype=torch.uint8)
    hisparse_ops.scatter_rows([rows], slots, [cache])
    assert torch.equal(cache[slots], rows)
