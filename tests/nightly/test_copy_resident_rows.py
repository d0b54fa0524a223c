"""copy_resident_rows: field cases, addresses, aliasing."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hisparse_ops import copy_resident_rows

# (row bytes, first row whose byte offset no longer fits a signed or unsigned 32-bit number)
EDGES = (
    (512, 4_194_304),
    (576, 3_728_271),
    (584, 3_677_199),
    (656, 3_273_604),
    (656, 6_547_207),
    (1152, 1_864_136),
)


def rows_of(t: Tensor) -> Tensor:
    return t.reshape(-1, t.shape[-1])


@pytest.mark.parametrize("width,edge", EDGES)
def test_row_offset_in_64_bit(tmp_path: Path, width: int, edge: int) -> None:
    """A 32-bit product wrapped here and read about zero, with no error (vllm #57602)."""
    size = (edge + 2) * width
    file = torch.from_file(str(tmp_path / "rows"), shared=True, size=size, dtype=torch.uint8)
    source = file.view(-1, width)
    near = [edge - 1, edge, edge + 1]
    source[near] = torch.tensor([[11], [12], [13]], dtype=torch.uint8)
    staging = torch.zeros(3, width, dtype=torch.uint8)
    copy_resident_rows(source, torch.tensor(near, dtype=torch.int32), staging, invalid="keep")
    assert staging.unique(dim=1)[:, 0].tolist() == [11, 12, 13]


def test_staging_offset_in_64_bit(tmp_path: Path) -> None:
    width, n = 656, 3_273_606
    file = torch.from_file(
        str(tmp_path / "staging"), shared=True, size=n * width, dtype=torch.uint8
    )
    source = torch.arange(1, 4, dtype=torch.uint8)[:, None].expand(3, width).contiguous()
    ids = torch.full((n,), -1, dtype=torch.int32)
    ids[-3:] = torch.tensor([0, 1, 2])
    copy_resident_rows(source, ids, file.view(n, width), invalid="keep")
    assert file.view(n, width)[-3:].unique(dim=1)[:, 0].tolist() == [1, 2, 3]


def test_block_offset_in_64_bit(tmp_path: Path) -> None:
    """``block * block_stride`` of a slab whose pages lie 1 GiB apart (vllm #46222)."""
    gap = 2**30
    file = torch.from_file(str(tmp_path / "slab"), shared=True, size=6 * gap, dtype=torch.uint8)
    slab = file.as_strided((6, 2, 656), (gap, 656, 1))
    for block in range(6):
        slab[block] = block + 1
    staging = torch.zeros(6, 656, dtype=torch.uint8)
    copy_resident_rows(slab, torch.arange(6) * 2 + 1, staging, invalid="keep")
    assert staging.unique(dim=1)[:, 0].tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("width", [7, 132, 512, 576, 584, 656, 1152])
def test_exactly_the_bytes_of_a_row(width: int) -> None:
    """A kernel made for 576 bytes walked 64 bytes past each 512-byte row (vllm #56314)."""
    source = torch.randint(0, 256, (6, width), dtype=torch.uint8)
    staging = torch.full((6, width + 1), 0xA5, dtype=torch.uint8)
    copy_resident_rows(source, torch.tensor([5, 1, 3]), staging[:3, :width], invalid="keep")
    assert torch.equal(staging[:3, :width], source[[5, 1, 3]])
    assert (staging[:3, width] == 0xA5).all() and (staging[3:] == 0xA5).all()


def test_two_layers_in_one_storage_keep_their_own_rows() -> None:
    """Layers bound to one base offset overwrote each other (vllm #57019)."""
    slab = torch.zeros(4, 2, 8, 132, dtype=torch.uint8)
    slab[:, 0], slab[:, 1] = 3, 5
    staging = torch.zeros(2, 2, 8, 132, dtype=torch.uint8)
    ids = torch.tensor([31, 8, 9, 10, 0, 16])
    for layer in range(2):
        copy_resident_rows(slab[:, layer], ids, staging[:, layer], invalid="keep")
    assert (staging[0, 0, :6] == 3).all() and (staging[0, 1, :6] == 5).all()
    assert not staging[0, :, 6:].any() and not staging[1].any()


def test_initial_staging_reads_row_0_and_a_patch_keeps_what_is_staged() -> None:
    source = torch.arange(40, dtype=torch.uint8).view(10, 4)
    staging = torch.full((4, 4), 0xA5, dtype=torch.uint8)
    copy_resident_rows(source, torch.tensor([7, -1, 3, 10]), staging, invalid="row0")
    assert torch.equal(staging, source[[7, 0, 3, 0]])
    copy_resident_rows(source, torch.tensor([-1, 9, -1, -1]), staging, invalid="keep")
    assert torch.equal(staging, source[[7, 9, 3, 0]])


def test_an_id_that_32_bits_would_wrap_into_the_source_is_outside_it() -> None:
    source = torch.arange(40, dtype=torch.uint8).view(10, 4)
    ids = torch.tensor([2**32, 2**32 + 3, -(2**32) + 3, 2**63 - 1, -(2**63)])
    staging = torch.full((5, 4), 0xA5, dtype=torch.uint8)
    copy_resident_rows(source, ids, staging, invalid="keep")
    assert (staging == 0xA5).all()


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.int8, torch.bool]
)
def test_one_byte_dtypes_are_bytes(dtype: torch.dtype) -> None:
    """All 256 patterns pass, NaN and -0.0 among them, into the same dtype and into uint8."""
    patterns = torch.arange(256, dtype=torch.uint8).view(4, 64)
    ids = torch.tensor([2, 0, 3])
    for to in (dtype, torch.uint8):
        staging = torch.zeros(3, 64, dtype=torch.uint8).view(to)
        copy_resident_rows(patterns.view(dtype), ids, staging, invalid="keep")
        assert torch.equal(staging.view(torch.uint8), patterns[ids])


def test_values_and_scales_of_a_page_are_two_copies() -> None:
    """A page may hold all values first and all scales after them (vllm #53592)."""
    block_size, value, scale = 4, 576, 8
    pages = torch.randint(0, 256, (3, block_size * (value + scale)), dtype=torch.uint8)
    stride = pages.shape[1]
    values = pages.as_strided((3, block_size, value), (stride, value, 1))
    scales = pages.as_strided((3, block_size, scale), (stride, scale, 1), block_size * value)
    ids = torch.tensor([9, 2, 4, 11, 0])
    staged = torch.zeros(5, value + scale, dtype=torch.uint8)
    copy_resident_rows(values, ids, staged[:, :value], invalid="keep")
    copy_resident_rows(scales, ids, staged[:, value:], invalid="keep")
    expected = torch.cat([rows_of(values)[ids], rows_of(scales)[ids]], 1)
    assert torch.equal(staged, expected)


def test_layers_and_columns_beside_the_source_are_no_overlap() -> None:
    slab = torch.randint(0, 256, (4, 2, 8, 64), dtype=torch.uint8)
    whole = slab[2, 0, 3].clone()
    copy_resident_rows(slab[:, 0], torch.tensor([19]), slab[:, 1], invalid="keep")
    assert torch.equal(slab[0, 1, 0], whole)
    # Columns of packed rows, in pages whose distance is no multiple of the row.
    packed = torch.randint(0, 256, (4, 8 * 64 + 17), dtype=torch.uint8)
    left = packed.as_strided((4, 8, 24), (529, 64, 1))
    right = packed.as_strided((4, 8, 24), (529, 64, 1), 40)
    copy_resident_rows(left, torch.tensor([30]), right, invalid="keep")
    assert torch.equal(right[0, 0], left[3, 6])


def _bytes(t: Tensor) -> set[int]:
    spans = [range(n) for n in t.shape]
    return {
        t.storage_offset() + sum(i * s for i, s in zip(index, t.stride(), strict=True))
        for index in product(*spans)
    }


def test_memory_shared_with_the_source_is_never_written() -> None:
    """Whatever the strides: a staging that shares one byte with the source is refused."""
    choose = random.Random(7)
    room = torch.zeros(400, dtype=torch.uint8)

    def view(width: int) -> Tensor:
        blocks, rows = choose.randint(1, 3), choose.randint(1, 3)
        row = width + choose.choice((0, 1, 4, 6))
        block = rows * row + choose.choice((0, 2, 3, 10, 12))
        if choose.random() < 0.3:
            return room.as_strided((rows, width), (row, 1), choose.randint(0, 60))
        return room.as_strided((blocks, rows, width), (block, row, 1), choose.randint(0, 60))

    no_ids = torch.zeros(0, dtype=torch.int32)
    outcomes = {True: 0, False: 0}
    for _ in range(4000):
        width = choose.randint(1, 6)
        source, staging = view(width), view(width)
        shared = bool(_bytes(source) & _bytes(staging))
        try:
            copy_resident_rows(source, no_ids, staging, invalid="keep")
        except ValueError:
            continue
        assert not shared, (source.stride(), source.storage_offset(), staging.stride())
        beside = source.storage_offset() < staging.storage_offset()
        outcomes[beside] += 1
    assert min(outcomes.values()) > 200  # the rule must accept what lies beside the source
