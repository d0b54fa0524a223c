"""gather_compact: faults known from the field, and what samples cannot show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import hisparse_ops


def gather(
    host_cache: Tensor, hot_cache: Tensor, entries: list[tuple[int, int]], dtype: torch.dtype
) -> None:
    """Copy (host row, hot row) entries, as one row of a plan."""
    host_rows, hot_rows = torch.tensor(entries, dtype=dtype).T
    counts = torch.tensor([len(entries)], dtype=dtype)
    hisparse_ops.gather_compact(host_cache, hot_cache, host_rows[None], hot_rows[None], counts)


def sparse(path: Path, *shape: int) -> Tensor:
    """Bytes of a sparse file: only what is touched takes memory."""
    size = int(np.prod(shape, dtype=np.int64))
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8).view(shape)


def test_row_without_source_is_zeroed_not_stale() -> None:
    host = torch.full((8, 16), 3, dtype=torch.uint8)
    hot = torch.full((2, 4, 16), 9, dtype=torch.uint8)
    gather(host, hot, [(8 + 3, 0), (-1, 1), (2, -1), (2, 8)], torch.int32)
    assert hot[0, 0].eq(0).all()
    assert hot.view(8, 16)[1:].eq(9).all()


# The first row whose byte offset no longer fits int32, and for C8 rows the first that uint32 cannot hold.
@pytest.mark.parametrize(
    "row_bytes,row",
    [
        (576, 3_728_271),
        (656, 3_273_604),
        (1152, 1_864_136),
        (584, 3_677_199),
        (512, 4_194_304),
        (656, 6_547_207),
    ],
)
def test_offsets_beyond_32_bits(tmp_path: Path, row_bytes: int, row: int) -> None:
    """int32 row * width returned about zero with no error (vllm #57602, #46222)."""
    host = sparse(tmp_path / "host", row + 1, row_bytes)
    hot = sparse(tmp_path / "hot", row + 1, row_bytes)
    host[row - 1], host[row], host[0] = 1, 2, 3
    gather(host, hot, [(row, 5), (row - 1, row - 1), (0, row)], torch.int32)
    assert hot[5].eq(2).all()
    assert hot[row - 1].eq(1).all()
    assert hot[row].eq(3).all()


def test_block_stride_beyond_32_bits(tmp_path: Path) -> None:
    """A page deep in a slab that all layers share (vllm #46222)."""
    slab = sparse(tmp_path / "slab", 5, 2**30)
    hot = slab.as_strided((5, 64, 656), (2**30, 656, 1))
    host = torch.arange(10, dtype=torch.uint8)[:, None].repeat(1, 656)
    gather(host, hot, [(7, 4 * 64 + 63), (3, 2 * 64)], torch.int64)
    assert hot[4, 63].eq(7).all()
    assert hot[2, 0].eq(3).all()
    assert slab[0, :4096].eq(0).all()


@pytest.mark.parametrize("row_bytes", [512, 576, 584, 656, 1152, 132, 7])
def test_row_width_is_exact(row_bytes: int) -> None:
    """A kernel for 576-byte rows walked a 512-byte cache (vllm #56314, #57134)."""
    host = torch.randint(0, 256, (9, row_bytes), dtype=torch.uint8)
    hot = torch.full((3, 3, row_bytes), 77, dtype=torch.uint8)
    gather(host, hot, [(8, 4), (0, 8)], torch.int32)
    expected = torch.full((9, row_bytes), 77, dtype=torch.uint8)
    expected[4], expected[8] = host[8], host[0]
    assert torch.equal(hot.view(9, row_bytes), expected)


def test_layers_of_one_slab_stay_apart() -> None:
    """Later layers overwrote earlier ones where the layer offset was dropped (vllm #57019)."""
    slab = torch.zeros(4, 2, 64, 656, dtype=torch.uint8)
    for layer in range(2):
        host = torch.full((300, 656), 10 + layer, dtype=torch.uint8)
        gather(host, slab[:, layer], [(299, 70), (1, 255)], torch.int32)
    for layer in range(2):
        rows = slab[:, layer].reshape(256, 656)
        assert rows[[70, 255]].eq(10 + layer).all()
        assert int(rows.count_nonzero()) == 2 * 656


def test_a_layer_may_be_filled_from_its_neighbour() -> None:
    """Interleaved pages share an address range, not a byte."""
    slab = torch.arange(4, dtype=torch.uint8)[:, None, None, None].repeat(1, 2, 4, 16)
    gather(slab[:, 0], slab[:, 1], [(13, 2)], torch.int32)
    assert slab[0, 1, 2].eq(3).all()
    assert slab[0, 1, 3].eq(0).all()


def test_host_block_is_not_the_device_block() -> None:
    """One page list for both sides corrupted history (sglang #31482)."""
    host = torch.arange(10, dtype=torch.uint8).repeat_interleave(64)[:, None].repeat(1, 16)
    hot = torch.zeros(12, 64, 16, dtype=torch.uint8)
    gather(host, hot, [(5 * 64 + offset, 9 * 64 + offset) for offset in range(64)], torch.int32)
    assert hot[9].eq(5).all()
    assert hot[5].eq(0).all()


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("seed", range(3))
def test_last_entry_wins_on_any_number_of_threads(threads: int, seed: int) -> None:
    """A decode step's plan with every hot row named about ten times, against numpy."""
    gen = torch.Generator().manual_seed(seed)
    host = torch.randint(0, 256, (5000, 64), dtype=torch.uint8, generator=gen)
    hot = torch.randint(0, 256, (10, 64, 64), dtype=torch.uint8, generator=gen)
    host_rows = torch.randint(-50, 5050, (16, 512), dtype=torch.int32, generator=gen)
    hot_rows = torch.randint(-20, 660, (16, 512), dtype=torch.int32, generator=gen)
    counts = torch.randint(0, 600, (16,), dtype=torch.int32, generator=gen)

    expected = hot.view(640, 64).numpy().copy()
    source = np.concatenate([host.numpy(), np.zeros((50, 64), np.uint8)])
    kept = np.arange(512)[None] < counts.numpy()[:, None]
    h, p = host_rows.numpy()[kept], hot_rows.numpy()[kept]
    copied = (h >= 0) & (p >= 0) & (p < 640)
    last = dict(zip(p[copied].tolist(), h[copied].tolist(), strict=True))
    expected[list(last.keys())] = source[list(last.values())]

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        hisparse_ops.gather_compact(host, hot, host_rows, hot_rows, counts)
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(hot.view(640, 64).numpy(), expected)


def test_fp8_rows_and_bytes_are_one_thing() -> None:
    host = torch.arange(256, dtype=torch.uint8).view(16, 16)
    hot = torch.zeros(1, 16, 16, dtype=torch.float8_e4m3fn)
    gather(host, hot, [(row, 15 - row) for row in range(16)], torch.int32)
    assert torch.equal(hot[0].view(torch.uint8).flip(0), host)
