"""residency_stats agrees with what the resolver counts itself."""

from __future__ import annotations

import pytest
import torch

import hisparse_ops
from hisparse_ops.testing.samples.resolve import random_topk, scene


@pytest.mark.parametrize("layout", ["column", "prefix"])
def test_same_numbers_as_resolve(layout: str) -> None:
    gen = torch.Generator().manual_seed(3)
    runs = ((0, 4), (-1, 1), (2, 4), (1, 2))
    args = scene(gen, runs=runs, hot_size=40, resident=0.3, repeat=0.2, layout=layout)
    args["stats"].zero_()
    sampled = torch.zeros(2, dtype=torch.int64)
    for _ in range(20):
        args["topk_indices"].copy_(random_topk(gen, 11, 8, 48, repeat=0.2))
        hisparse_ops.ops()["resolve"].call(**args)
        hisparse_ops.residency_stats(
            args["valid_counts"],
            args["refill_counts"],
            sampled,
            resident_counts=args["resident_counts"],
        )
        assert torch.equal(sampled, args["stats"])
    assert (sampled > 0).all()


def test_sums_of_garbage_wrap_at_64_bits() -> None:
    """Signed, the overflow would be undefined behaviour."""
    big = torch.tensor([2**63 - 1, 2**63 - 1, 5])
    stats = torch.tensor([2**63 - 1, -1])
    hisparse_ops.residency_stats(big, torch.tensor([2**63 - 1, 1, 0]), stats)
    assert stats.tolist() == [2, 2**63 - 1]
