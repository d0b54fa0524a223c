"""pad_slots: what samples cannot show."""

from __future__ import annotations

import pytest
import torch

from hisparse_ops import pad_slots


def test_a_slot_beyond_int32_becomes_minus_one_and_never_another_slot() -> None:
    slots = torch.tensor([5, 2**31 - 1, 2**31, 2**32 + 5, -(2**31), -(2**31) - 1, 2**63 - 1])
    out = torch.full((7,), 123456, dtype=torch.int32)
    pad_slots(slots, torch.tensor([7]), out)
    assert out.tolist() == [5, 2**31 - 1, -1, -1, -(2**31), -1, -1]


@pytest.mark.parametrize("count", [2**32 + 2, 2**63 - 1])
def test_a_count_beyond_int32_keeps_every_slot(count: int) -> None:
    out = torch.full((3,), 123456)
    pad_slots(torch.tensor([7, 8, 9]), torch.tensor([count]), out)
    assert out.tolist() == [7, 8, 9]


def test_padding_is_rewritten_when_the_count_at_its_address_changes() -> None:
    """What a graph replay sees: same tensors, another count (vllm #21196: stale padding)."""
    slots, count = torch.arange(6), torch.tensor([6], dtype=torch.int32)
    out = torch.full((6,), 123456, dtype=torch.int32)
    for valid in (6, 2, 0, 4):
        count.fill_(valid)
        pad_slots(slots, count, out)
        assert out.tolist() == [*range(valid), *[-1] * (6 - valid)]


def test_in_place() -> None:
    slots = torch.tensor([4, 7, 1, 2], dtype=torch.int32)
    pad_slots(slots, torch.tensor([2]), slots)
    assert slots.tolist() == [4, 7, -1, -1]


def test_a_count_inside_the_slots_is_read_before_they_are_written() -> None:
    slots = torch.tensor([4, 7, 1, 2], dtype=torch.int32)
    pad_slots(slots, slots[2:3], slots)
    assert slots.tolist() == [4, -1, -1, -1]


def test_the_same_memory_at_another_width_is_refused() -> None:
    slots = torch.arange(8, dtype=torch.int32)
    wide = slots.view(torch.int64)
    with pytest.raises(
        ValueError, match=r"^pad_slots: out must not overlap slots, got shared memory$"
    ):
        pad_slots(slots[:4], torch.tensor([2]), wide)
    assert slots.tolist() == list(range(8))
