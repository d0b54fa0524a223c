"""copy_pages: field cases, addresses, order of writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import hisparse_ops
from hisparse_ops import copy_pages


@pytest.fixture
def restore_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_host_and_device_number_their_pages_independently() -> None:
    """One page list for both sides corrupted history while still resident (sglang #31482)."""
    host = torch.arange(8, dtype=torch.uint8)[:, None, None].expand(8, 4, 24).contiguous()
    device = torch.full((12, 4, 24), 0xA5, dtype=torch.uint8)
    copy_pages([host], [device], torch.tensor([[5, 9]]))  # host block 5, device block 9
    assert (device[9] == 5).all()
    assert (device[torch.arange(12) != 9] == 0xA5).all()
    host.zero_()
    copy_pages([device], [host], torch.tensor([[9, 3]]))
    assert (host[3] == 5).all() and int(host.any(2).any(1).sum()) == 1


def test_two_layers_in_one_storage_come_back_as_they_were() -> None:
    """Views that ignored the layer offset let later layers overwrite earlier ones (vllm #57019)."""
    device = torch.zeros(6, 2, 8, 656, dtype=torch.uint8)
    device[:, 0], device[:, 1] = 3, 5
    layers = [device[:, 0], device[:, 1]]
    host = torch.zeros(2, 4, 8, 656, dtype=torch.uint8)
    copy_pages(layers, list(host), torch.tensor([[5, 1], [2, 3]]))
    device.zero_()
    copy_pages(list(host), layers, torch.tensor([[1, 4], [3, 1]]))
    assert (device[[1, 4], 0] == 3).all() and (device[[1, 4], 1] == 5).all()
    assert not device[[0, 2, 3, 5]].any()


def test_the_null_block_is_neither_read_nor_written() -> None:
    source = torch.ones(3, 4, 16, dtype=torch.uint8)
    to = torch.zeros(3, 4, 16, dtype=torch.uint8)
    copy_pages([source], [to], torch.tensor([[0, 1], [1, 0], [0, 0], [-1, 1], [1, -1]]))
    assert not to.any()


def test_a_page_that_32_bits_would_wrap_into_the_slab_is_outside_it() -> None:
    source = torch.ones(3, 4, 16, dtype=torch.uint8)
    to = torch.zeros(3, 4, 16, dtype=torch.uint8)
    copy_pages([source], [to], torch.tensor([[2**32 + 1, 1], [1, 2**32 + 1], [3, 1], [1, 3]]))
    assert not to.any()


def test_values_and_scales_of_a_page_are_two_layers() -> None:
    """Block of 4 rows, 576 + 8 bytes, all values before all scales (vllm #53592)."""
    rows, value, scale = 4, 576, 8
    stride = rows * (value + scale)

    def regions(pages: Tensor) -> list[Tensor]:
        values = pages.as_strided((len(pages), rows, value), (stride, value, 1))
        scales = pages.as_strided((len(pages), rows, scale), (stride, scale, 1), rows * value)
        return [values, scales]

    device = torch.randint(1, 256, (4, stride), dtype=torch.uint8)
    host = torch.zeros(5, stride, dtype=torch.uint8)
    copy_pages(regions(device), regions(host), torch.tensor([[3, 1], [1, 4]]))
    assert torch.equal(host[[1, 4]], device[[3, 1]])
    assert not host[[0, 2, 3]].any()


def test_block_offset_in_64_bit(tmp_path: Path) -> None:
    """Either side past 2^31 and 2^32 bytes; pages 1 GiB apart (vllm #46222)."""
    gap = 2**30
    file = torch.from_file(str(tmp_path / "slab"), shared=True, size=6 * gap, dtype=torch.uint8)
    slab = file.as_strided((6, 4, 132), (gap, 132, 1))
    near = torch.randint(1, 256, (6, 4, 132), dtype=torch.uint8)
    copy_pages([near], [slab], torch.tensor([[1, 2], [2, 4], [3, 5]]))
    for page, to in ((1, 2), (2, 4), (3, 5)):
        assert torch.equal(slab[to], near[page])
    back = torch.zeros_like(near)
    copy_pages([slab], [back], torch.tensor([[2, 1], [4, 2], [5, 3]]))
    assert torch.equal(back[1:4], near[1:4])


def test_page_number_times_page_bytes_in_64_bit(tmp_path: Path) -> None:
    """128 rows of 1,024 bytes: the product wraps at block 16,384, about 2.1 M tokens."""
    page = 128 * 1024
    size = 16386 * page
    file = torch.from_file(str(tmp_path / "slab"), shared=True, size=size, dtype=torch.uint8)
    slab = file.view(16386, 128, 1024)
    near = torch.zeros(4, 128, 1024, dtype=torch.uint8)
    near += torch.tensor([0, 7, 8, 9], dtype=torch.uint8)[:, None, None]
    copy_pages([near], [slab], torch.tensor([[1, 16383], [2, 16384], [3, 16385]]))
    assert slab[16383:, 0, 0].tolist() == slab[16383:, 127, 1023].tolist() == [7, 8, 9]


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("layers", [1, 2, 5])
def test_the_later_pair_wins_on_any_number_of_threads(
    threads: int, layers: int, restore_threads: None
) -> None:
    torch.set_num_threads(threads)
    gen = torch.Generator().manual_seed(layers)
    pairs = torch.stack(
        [
            torch.randint(-1, 60, (2000,), generator=gen),
            torch.randint(-1, 22, (2000,), generator=gen),
        ],
        1,
    )
    source = torch.randint(0, 256, (layers, 58, 4, 64), dtype=torch.uint8, generator=gen)
    slab = torch.zeros(20, layers, 4, 64, dtype=torch.uint8)
    copy_pages(list(source), [slab[:, layer] for layer in range(layers)], pairs)
    last = {to: page for page, to in pairs.tolist() if 1 <= page < 58 and 1 <= to < 20}
    assert len(last) == 19 and not slab[0].any()
    for layer in range(layers):
        for to, page in last.items():
            assert torch.equal(slab[to, layer], source[layer, page])


def test_one_side_may_stay_on_the_host() -> None:
    host = torch.zeros(3, 8, 16, dtype=torch.uint8)
    device, pairs = host.to("meta"), torch.zeros(2, 2, dtype=torch.int64, device="meta")
    check = hisparse_ops.ops()["copy_pages"].check
    check([device], [host], pairs)
    check([host], [device], pairs)
    with pytest.raises(ValueError, match=r"^copy_pages: page_pairs must be on meta, got cpu$"):
        check([host], [device], torch.zeros(2, 2, dtype=torch.int64))
