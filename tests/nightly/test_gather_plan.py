"""gather_plan: faults known from the field, and what samples cannot show."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hisparse_ops


def i32(*values: int) -> Tensor:
    return torch.tensor([values], dtype=torch.int32)


def test_attention_index_spans_the_layers_of_the_slab() -> None:
    """Page 64 rows, pages 640 rows apart: row 65 is 641 (vllm #57602 counts up to 7.5 million)."""
    slab = torch.zeros(4, 640, 16, dtype=torch.uint8)
    rows = i32(65, 0, 63, 255, 256, -1)
    attention = torch.full_like(rows, 123456)
    hisparse_ops.gather_plan(
        torch.zeros(9, 16, dtype=torch.uint8),
        slab[:, :64],
        i32(0, 0, 0, 0, 0, 0),
        rows,
        i32(0, 0, 0, 0, 0, 0),
        attention_indices=attention,
        attention_block_stride=640,
    )
    assert attention.tolist() == [[641, 0, 63, 3 * 640 + 63, -1, -1]]
    assert slab.count_nonzero() == 0


def test_padding_rows_change_nothing_but_their_indices() -> None:
    """Graph padding that looks like real work must not copy (vLLM runtime.py pads with -1)."""
    host = torch.full((9, 16), 5, dtype=torch.uint8)
    hot = torch.zeros(2, 4, 16, dtype=torch.uint8)
    rows = torch.tensor([[1, 2], [3, 4], [5, 6]], dtype=torch.int32)
    attention = torch.full_like(rows, 123456)
    hisparse_ops.gather_plan(
        host,
        hot,
        rows,
        rows,
        torch.ones_like(rows),
        attention_indices=attention,
        attention_block_stride=4,
        request_state_indices=torch.tensor([0, -1, 0], dtype=torch.int32),
    )
    assert attention.tolist() == [[1, 2], [-1, -1], [5, 6]]
    assert hot.view(8, 16)[:, 0].tolist() == [0, 5, 5, 0, 0, 5, 5, 0]


@pytest.mark.parametrize("dtype,mark", [(torch.int32, -1), (torch.int64, 2**40), (torch.int32, 4)])
@pytest.mark.parametrize("top_k", [1, 15, 16, 17, 40])
def test_a_single_miss_is_found_in_any_column(dtype: torch.dtype, mark: int, top_k: int) -> None:
    host = torch.arange(1, top_k + 1, dtype=torch.uint8)[:, None]
    rows = torch.arange(top_k, dtype=dtype)[None]
    for column in range(top_k):
        hot = torch.zeros(1, top_k, 1, dtype=torch.uint8)
        mask = torch.zeros_like(rows)
        mask[0, column] = mark
        hisparse_ops.gather_plan(host, hot, rows, rows, mask)
        assert hot.nonzero()[:, 1].tolist() == [column]
        assert int(hot[0, column, 0]) == column + 1


@pytest.mark.parametrize("threads", [1, 4])
def test_replay_by_mask_is_the_compact_plan(threads: int) -> None:
    """Followers of an index group may replay either form of one plan (vLLM gather_plan, gather_compact)."""
    gen = torch.Generator().manual_seed(threads)
    rows, top_k = 32, 256
    host = torch.randint(0, 256, (9000, 132), dtype=torch.uint8, generator=gen)
    by_mask = torch.zeros(128, 64, 132, dtype=torch.uint8)
    by_count = by_mask.clone()
    host_rows = torch.randint(-1, 9010, (rows, top_k), dtype=torch.int32, generator=gen)
    hot_rows = torch.randint(-1, 8300, (rows, top_k), dtype=torch.int32, generator=gen)
    miss_mask = (torch.rand(rows, top_k, generator=gen) < 0.4).int()

    packed_host, packed_hot = torch.full_like(host_rows, -1), torch.full_like(hot_rows, -1)
    for row in range(rows):
        missed = miss_mask[row].bool()
        count = int(missed.sum())
        packed_host[row, :count] = host_rows[row, missed]
        packed_hot[row, :count] = hot_rows[row, missed]

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        hisparse_ops.gather_plan(host, by_mask, host_rows, hot_rows, miss_mask)
        hisparse_ops.gather_compact(host, by_count, packed_host, packed_hot, miss_mask.sum(1))
    finally:
        torch.set_num_threads(before)
    assert by_mask.count_nonzero() > 0
    assert torch.equal(by_mask, by_count)


@pytest.mark.parametrize("stride", [1, 3])
def test_one_long_row_is_shared_out(stride: int) -> None:
    """A replay of all layers may come as one row of n entries ([1, n] in vLLM)."""
    n = 50_000
    hot = torch.zeros(n // 50, 50, 1, dtype=torch.uint8)
    rows = torch.arange(-1, n + 1)[:, None].repeat(1, stride)[:, 0][None]
    attention = torch.full(rows.shape, 123456, dtype=torch.int32)
    nothing = torch.zeros_like(rows)
    hisparse_ops.gather_plan(
        torch.zeros(1, 1, dtype=torch.uint8),
        hot,
        nothing,
        rows,
        nothing,
        attention_indices=attention,
        attention_block_stride=1000,
    )
    block = torch.arange(n) // 50
    expected = torch.cat([i32(-1)[0], (block * 1000 + torch.arange(n) % 50).int(), i32(-1)[0]])
    assert torch.equal(attention[0], expected)
