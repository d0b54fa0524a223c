"""reset_requests: what samples cannot show."""

from __future__ import annotations

import torch

import hisparse_ops


def test_same_as_a_new_state() -> None:
    owner, lru = hisparse_ops.new_hot_state(3, 40)
    used_owner, used_lru = torch.randint_like(owner, 100), lru.flip(1).contiguous()
    hisparse_ops.reset_requests(used_owner, used_lru, torch.arange(3))
    assert torch.equal(used_owner, owner) and torch.equal(used_lru, lru)


def test_many_repeats_of_one_row() -> None:
    """Long enough to be dealt to several threads; all of them name the same row."""
    owner, lru = torch.zeros(2, 4096, dtype=torch.int32), torch.zeros(2, 4096, dtype=torch.int16)
    hisparse_ops.reset_requests(owner, lru, torch.ones(500, dtype=torch.int32))
    assert (owner[1] == -1).all() and (owner[0] == 0).all() and (lru[0] == 0).all()
    assert torch.equal(lru[1], torch.arange(4096, dtype=torch.int16))
