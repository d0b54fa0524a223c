from torch import Tensor


def residency_stats(
    valid_counts: Tensor,
    refill_counts: Tensor,
    stats: Tensor,
    *,
    resident_counts: Tensor | None = None,
) -> None:
    resident = 0 if resident_counts is None else sum(resident_counts.tolist())
    misses = sum(refill_counts.tolist())
    stats[0] = _wrapped(int(stats[0]) + sum(valid_counts.tolist()) - resident - misses)
    stats[1] = _wrapped(int(stats[1]) + misses)


def _wrapped(total: int) -> int:
    return (total + 2**63) % 2**64 - 2**63
