"""Measure the hit rates that ``plan`` interpolates: synthetic presets, replayed through ``resolve``.

    PYTHONPATH=python python tools/locality.py > python/hisparse_ops/plan/locality.json    (about 3 minutes)

A preset has no scale of its own, so a small top-k stands for every other: what counts is the context and the hot
buffer in units of top-k.
"""

from __future__ import annotations

import json
import sys

from hisparse_ops import traces
from hisparse_ops._replay import replay
from hisparse_ops.plan.refill import PRESETS

TOP_K = 1024
CONTEXTS = (4, 8, 16, 32, 64, 128, 512)  # in units of top-k
MTP_ROWS = (1, 2, 4, 6)
HOT_SIZES = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0)  # in units of mtp_rows * top_k: what one step may need
STEPS, WARMUP = 200, 120


def measure(preset: str, context: int, mtp_rows: int, hot_sizes: tuple[float, ...]) -> list[float]:
    """Hit rate of each hot size, after the warm-up."""
    trace = traces.generate(
        preset, context=context * TOP_K, top_k=TOP_K, steps=STEPS, mtp_rows=mtp_rows
    )
    found = []
    for hot_size in hot_sizes:
        slots = int(hot_size * mtp_rows * TOP_K)
        done = replay(trace, slots, row_bytes=0, warmup=WARMUP)
        found.append(round(done.hit_rate, 3))
    return found


def main() -> None:
    """Print the table."""
    rates: dict[str, list[list[list[float]]]] = {}
    for preset in PRESETS:
        rates[preset] = [
            [measure(preset, context, mtp_rows, HOT_SIZES) for context in CONTEXTS]
            for mtp_rows in MTP_ROWS
        ]
        print(preset, file=sys.stderr)
    axes = {"mtp_rows": MTP_ROWS, "contexts": CONTEXTS, "hot_sizes": HOT_SIZES}
    print(json.dumps({**axes, "hit_rates": rates}))


if __name__ == "__main__":
    main()
