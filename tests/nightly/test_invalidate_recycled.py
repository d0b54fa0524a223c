"""invalidate_recycled: faults known from the field, and what samples cannot show."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hisparse_ops


def test_empty_list_is_a_no_op() -> None:
    """searchsorted over nothing, clamped to element -1, read before the list (vLLM returns early)."""
    table = torch.arange(-1, 30, dtype=torch.int32)[None].clone()
    states = torch.zeros(1, dtype=torch.int32)
    hisparse_ops.invalidate_recycled([table], states, torch.empty(0, dtype=torch.int32))
    hisparse_ops.invalidate_recycled([table], states, torch.tensor([-1, -1]))
    assert torch.equal(table[0], torch.arange(-1, 30, dtype=torch.int32))


def test_clears_every_copy_in_listed_rows_only() -> None:
    table = torch.tensor([[7, 3, 7, 8, 7]] * 4, dtype=torch.int32)
    hisparse_ops.invalidate_recycled(
        [table], torch.tensor([3, 1, 1, 4, -1]), torch.tensor([-1, 7, 7, 9])
    )
    assert table.tolist() == [[7, 3, 7, 8, 7], [-1, 3, -1, 8, -1]] * 2


def test_slots_are_compared_in_64_bits() -> None:
    table = torch.tensor([[7, -1, 0]], dtype=torch.int32)
    slots = torch.tensor([-(2**32), 2**32 - 1, 2**32 + 7])
    hisparse_ops.invalidate_recycled([table], torch.zeros(1, dtype=torch.int32), slots)
    assert table.tolist() == [[7, -1, 0]]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("isa", hisparse_ops.cpu_isas())
@pytest.mark.parametrize("kind", ["pages", "scattered", "one row of each page"])
def test_thousands_of_rows(isa: str, threads: int, kind: str) -> None:
    """A long request ends: 128 pages, or as many rows in the least favourable places."""
    gen = torch.Generator().manual_seed(threads)
    slots = {
        "pages": (
            torch.randperm(2000, generator=gen)[:128, None] * 64 + torch.arange(64)
        ).flatten(),
        "scattered": torch.randperm(128_000, generator=gen)[:8192],
        "one row of each page": torch.arange(2000) * 64,
    }[kind].sort()[0]
    owners = [
        torch.randint(-1, 128_000, (16, 4096 + group), dtype=torch.int32, generator=gen)
        for group in range(3)
    ]
    states = torch.tensor([15, 0, 3, 8])
    expected = [owner.clone() for owner in owners]
    for owner in expected:
        rows = owner[states]
        rows[torch.isin(rows, slots.int())] = -1
        owner[states] = rows

    isa_before, threads_before = hisparse_ops.cpu_isa(), torch.get_num_threads()
    hisparse_ops.set_cpu_isa(isa)
    torch.set_num_threads(threads)
    try:
        hisparse_ops.invalidate_recycled(owners, states, slots)
    finally:
        hisparse_ops.set_cpu_isa(isa_before)
        torch.set_num_threads(threads_before)
    for owner, want in zip(owners, expected, strict=True):
        assert torch.equal(owner, want)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    slots=st.lists(st.integers(-3, 300) | st.sampled_from([2**31 - 1, 2**31, 2**63 - 1, -(2**63)])),
    owner=st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 300), min_size=1),
    ascending=st.booleans(),
)
def test_drops_the_set_of_listed_rows(slots: list[int], owner: list[int], ascending: bool) -> None:
    """In order or not: only listed rows go, and only to -1."""
    table = torch.tensor([owner], dtype=torch.int32)
    listed = torch.tensor(sorted(slots) if ascending else slots, dtype=torch.int64)
    hisparse_ops.invalidate_recycled([table], torch.tensor([0]), listed)
    gone = {slot for slot in slots if slot >= 0}
    assert table[0].tolist() == [-1 if held in gone else held for held in owner]
