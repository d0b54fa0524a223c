"""publish_indexer_pages: field cases, addresses, order of writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hisparse_ops import publish_indexer_pages


@pytest.fixture
def restore_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_logical_blocks_address_one_layer_of_the_shared_slab() -> None:
    """A BF16 indexer took page numbers of its dense cache for logical blocks of the slab.

    Two layers share the slab, and no source block equals its destination, so that each mistake
    shows: dense numbers as destinations, logical ones as sources, a dense page distance, the other
    layer's offset.
    """
    block_size, width = 4, 128
    slab = torch.zeros(10, 2, block_size, width, dtype=torch.bfloat16)
    page_numbers = torch.arange(6, dtype=torch.bfloat16)[:, None, None]
    dense = [page_numbers + torch.full((6, block_size, width), 100.0 * k) for k in (1, 2)]
    dense = [layer.to(torch.bfloat16) for layer in dense]
    source_blocks, logical_blocks = torch.tensor([1, 2, 5]), torch.tensor([7, 9, 2])
    for layer in range(2):
        publish_indexer_pages(dense[layer], source_blocks, logical_blocks, slab[:, layer])
    for layer in range(2):
        for page, block in zip(source_blocks.tolist(), logical_blocks.tolist(), strict=True):
            assert (slab[block, layer] == 100 * (layer + 1) + page).all()
    assert not slab[[0, 1, 3, 4, 5, 6, 8]].any()


def test_bytes_between_the_pages_of_the_layer_stay() -> None:
    slab = torch.full((5, 3, 4, 132), 0xA5, dtype=torch.uint8)
    source = torch.ones(5, 4, 132, dtype=torch.uint8)
    blocks = torch.tensor([1, 2, 3, 4])
    publish_indexer_pages(source, blocks, blocks, slab[:, 1], row_counts=torch.tensor([4, 3, 0, 1]))
    assert (slab[:, [0, 2]] == 0xA5).all() and (slab[0] == 0xA5).all()
    published = (slab[:, 1] == 1).all(2).sum(1)
    assert published.tolist() == [0, 4, 3, 0, 1]
    assert torch.equal((slab[:, 1] == 0xA5).all(2).sum(1), 4 - published)


def test_the_null_block_is_null_on_both_sides() -> None:
    slab, source = torch.zeros(3, 4, 16), torch.ones(3, 4, 16)
    publish_indexer_pages(source, torch.tensor([0, 1, 0, -1]), torch.tensor([1, 0, 0, 2]), slab)
    assert not slab.any()


def test_a_block_that_32_bits_would_wrap_into_the_slab_is_outside_it() -> None:
    slab, source = torch.zeros(3, 4, 16), torch.ones(3, 4, 16)
    publish_indexer_pages(source, torch.tensor([2**32 + 1, 1]), torch.tensor([1, 2**32 + 1]), slab)
    assert not slab.any()


def test_a_count_beyond_32_bits_is_a_whole_page() -> None:
    slab, source = torch.zeros(3, 4, 16), torch.ones(3, 4, 16)
    counts = torch.tensor([2**32 + 1, -(2**32) + 3])
    publish_indexer_pages(
        source, torch.tensor([1, 2]), torch.tensor([2, 1]), slab, row_counts=counts
    )
    assert slab[2].all() and not slab[1].any()


def test_block_offset_in_64_bit(tmp_path: Path) -> None:
    """Either side past 2^31 and 2^32 bytes; pages 1 GiB apart (vllm #46222)."""
    gap = 2**30
    file = torch.from_file(str(tmp_path / "slab"), shared=True, size=6 * gap, dtype=torch.uint8)
    slab = file.as_strided((6, 4, 132), (gap, 132, 1))
    near = torch.randint(1, 256, (6, 4, 132), dtype=torch.uint8)
    publish_indexer_pages(near, torch.tensor([1, 2, 3]), torch.tensor([2, 4, 5]), slab)
    for page, to in ((1, 2), (2, 4), (3, 5)):
        assert torch.equal(slab[to], near[page])
    back = torch.zeros_like(near)
    publish_indexer_pages(slab, torch.tensor([2, 4, 5]), torch.tensor([1, 2, 3]), back)
    assert torch.equal(back[1:4], near[1:4])


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_the_later_entry_wins_row_by_row_on_any_number_of_threads(
    threads: int, restore_threads: None
) -> None:
    torch.set_num_threads(threads)
    gen = torch.Generator().manual_seed(3)
    n, block_size = 2000, 4
    pages, blocks, counts = (
        torch.randint(-1, high, (n,), generator=gen) for high in (60, 22, block_size + 2)
    )
    source = torch.randint(0, 256, (58, block_size, 132), dtype=torch.uint8, generator=gen)
    slab = torch.zeros(20, 2, block_size, 132, dtype=torch.uint8)
    publish_indexer_pages(source, pages, blocks, slab[:, 1], row_counts=counts)
    last: dict[tuple[int, int], int] = {}
    for page, block, count in zip(pages.tolist(), blocks.tolist(), counts.tolist(), strict=True):
        if 1 <= page < 58 and 1 <= block < 20:
            last.update({(block, row): page for row in range(min(count, block_size))})
    assert len(last) == 19 * block_size and not slab[:, 0].any() and not slab[0].any()
    for (block, row), page in last.items():
        assert torch.equal(slab[block, 1, row], source[page, row])
