"""invalidate_written: faults known from the field, and what samples cannot show."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hisparse_ops


def expected_owners(owners: list[Tensor], slots: dict[int, Tensor]) -> list[Tensor]:
    """The tables after the given slots of each state row are dropped."""
    result = [owner.clone() for owner in owners]
    for owner in result:
        for state, written in slots.items():
            owner[state][torch.isin(owner[state], written.to(torch.int32))] = -1
    return result


def assert_same(owners: list[Tensor], expected: list[Tensor]) -> None:
    for owner, want in zip(owners, expected, strict=True):
        assert torch.equal(owner, want)


def test_clears_every_copy_and_only_in_the_right_rows() -> None:
    """The input of a public vLLM test: slot 7 five times, requests -2..5 of 4, states [0, 1, -1, 9] of 4."""
    table = torch.tensor([[7, 3, 7, 7, 5, 7, 7]] * 4, dtype=torch.int32)
    hisparse_ops.invalidate_written(
        [table],
        torch.tensor([0, 1, -1, 9], dtype=torch.int32),
        torch.tensor([-2, -1, 0, 1, 2, 3, 4, 5], dtype=torch.int32),
        torch.tensor([3, 5, 7, -1, 7, 7, 7, 7]),
    )
    assert table[0].tolist() == [-1, 3, -1, -1, 5, -1, -1]
    assert table[1:].eq(torch.tensor([7, 3, 7, 7, 5, 7, 7])).all()


def test_slots_are_compared_in_64_bits() -> None:
    table = torch.tensor([[7, -1, 0]], dtype=torch.int32)
    request = torch.zeros(3, dtype=torch.int32)
    hisparse_ops.invalidate_written(
        [table], request[:1], request, torch.tensor([2**32 + 7, 2**32 - 1, -(2**32)])
    )
    assert table.tolist() == [[7, -1, 0]]


def test_nothing_written_is_nothing_done() -> None:
    """Empty lists (vllm-ascend's scatter refused them, searchsorted read before them)."""
    table = torch.tensor([[7]], dtype=torch.int32)
    none, one = torch.empty(0, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    hisparse_ops.invalidate_written([table], one, none, none)
    hisparse_ops.invalidate_written([table], none, one, one + 7)
    hisparse_ops.invalidate_written([], one, one, one)
    assert table.tolist() == [[7]]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("isa", hisparse_ops.cpu_isas())
def test_a_prefill_chunk_of_many_requests(isa: str, threads: int) -> None:
    """8192 slots in all: requests that write one row, a page, scattered rows, and the same rows twice."""
    gen = torch.Generator().manual_seed(threads)
    states, hot_size = 24, 2048
    owners = [
        torch.randint(-1, 40_000, (states, hot_size + group), dtype=torch.int32, generator=gen)
        for group in range(3)
    ]
    of_state = {
        0: torch.tensor([123]),
        3: torch.arange(640, 704),
        4: torch.randperm(40_000, generator=gen)[:3000],
        7: torch.cat([torch.arange(20) * 64, torch.arange(20) * 64]),
        23: (torch.arange(60)[:, None] * 192 + torch.arange(64)).flatten(),
    }
    state_rows = torch.tensor([23, 0, 3, 7, 4, -1])
    requests, slots = [], []
    for request, state in enumerate(state_rows.tolist()):
        written = of_state.get(state, torch.arange(1000))
        requests += [request] * len(written)
        slots += written.tolist()
    order = torch.randperm(len(slots), generator=gen)
    expected = expected_owners(owners, of_state)

    isa_before, threads_before = hisparse_ops.cpu_isa(), torch.get_num_threads()
    hisparse_ops.set_cpu_isa(isa)
    torch.set_num_threads(threads)
    try:
        hisparse_ops.invalidate_written(
            owners, state_rows, torch.tensor(requests)[order], torch.tensor(slots)[order]
        )
    finally:
        hisparse_ops.set_cpu_isa(isa_before)
        torch.set_num_threads(threads_before)
    assert_same(owners, expected)


def test_calls_of_different_sizes_share_no_leftovers() -> None:
    """Buffers are kept from call to call: a small call after a large one sees its own slots only."""
    request = torch.zeros(3000, dtype=torch.int32)
    large = torch.arange(3000) * 3
    for slots in (large, large[:1], large[5:20], large):
        table = torch.arange(9000, dtype=torch.int32)[None].clone()
        hisparse_ops.invalidate_written([table], request[:1], request[: len(slots)], slots)
        assert torch.equal((table[0] == -1).nonzero()[:, 0], slots)
