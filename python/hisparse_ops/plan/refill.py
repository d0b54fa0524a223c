"""What misses cost: bytes over the link to the host, and the hot size that is worth its memory."""

from __future__ import annotations

import functools
import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

from hisparse_ops.plan.memory import MAX_HOT_SIZE, Layout, Setup, plan_on

HIT_RATES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999)
"""A range, because the hit rate is the workload's."""

PRESETS = ("mid-layer", "static", "drift")
"""Synthetic traces of one published overlap: the middle one recommends, the others show the range."""


@dataclass(frozen=True)
class Link:
    """The way from the host to a device, and the step that refills stand beside."""

    bytes_per_second: float
    step_seconds: float
    """A decode step without refills."""


@dataclass(frozen=True)
class Refill:
    """What one hit rate costs."""

    hit_rate: float
    bytes_per_step: float
    """Of all requests, in every layer, on one rank."""
    bytes_per_second: float
    """Bandwidth at which a step's refills take as long as the step."""
    seconds: float
    """Time of a step's refills on the link."""
    link_share: float
    """``seconds`` of the step's time: above 1 the link cannot keep up, even when all refills overlap the step."""


def refill(setup: Setup, layout: Layout, link: Link, requests: int, hit_rate: float) -> Refill:
    """Refills of one decode step of ``requests`` requests."""
    references = setup.query_rows * min(setup.model.top_k, setup.context)
    size = requests * references * (1 - hit_rate) * layout.layers * layout.main_row
    seconds = size / link.bytes_per_second
    return Refill(hit_rate, size, size / link.step_seconds, seconds, seconds / link.step_seconds)


@dataclass(frozen=True)
class HotSize:
    """What a hot size would give."""

    hot_size: int
    concurrency: int
    hit_rate: float
    refill_seconds: float
    requests_per_second: float
    """Request steps in a second: what the recommendation maximises."""


def consider(setup: Setup, layout: Layout, link: Link, preset: str, hot_size: int) -> HotSize:
    """``hot_size`` instead of the setup's, for the locality of ``preset``."""
    at = replace(setup, hot_size=hot_size)
    requests = plan_on(at, layout).concurrency
    rate = hit_rate(preset, setup, hot_size)
    seconds = refill(at, layout, link, requests, rate).seconds
    return HotSize(hot_size, requests, rate, seconds, requests / (link.step_seconds + seconds))


def recommend(setup: Setup, layout: Layout, link: Link, preset: str) -> HotSize | None:
    """The hot size with the most request steps per second, the smaller of equals; None where nothing fits."""
    unit = setup.block_size * max(1, setup.model.top_k // (4 * setup.block_size))
    low = setup.query_rows * setup.model.top_k
    sizes = [low, *range(low - low % unit + unit, MAX_HOT_SIZE + 1, unit)]
    found = [consider(setup, layout, link, preset, size) for size in sizes]
    best = max(found, key=lambda one: one.requests_per_second)
    return best if best.concurrency else None


def hit_rate(preset: str, setup: Setup, hot_size: int) -> float:
    """Expected hit rate, interpolated between replays of ``preset``.

    The axes are context and hot size in units of what one step selects, and query rows; past the ends of the table
    the end stands, which for a larger hot size is too low.
    """
    tokens = setup.context + setup.output
    if hot_size >= tokens:
        return 1.0
    top_k, query_rows = setup.model.top_k, setup.query_rows
    table = _locality()
    by_rows = []
    for contexts in table.rates[preset]:
        found = [
            _interpolate(table.hot_sizes, rates, hot_size / (query_rows * top_k))
            for rates in contexts
        ]
        by_rows.append(_interpolate(table.contexts, found, math.log2(tokens / top_k)))
    return _interpolate(table.mtp_rows, by_rows, query_rows)


@dataclass(frozen=True)
class _Locality:
    """Hit rates by preset, query rows, context and hot size, as ``tools/locality.py`` measured them."""

    mtp_rows: list[int]
    contexts: list[float]
    """Base-2 logarithms."""
    hot_sizes: list[float]
    rates: dict[str, list[list[list[float]]]]


@functools.cache
def _locality() -> _Locality:
    table = json.loads((files("hisparse_ops.plan") / "locality.json").read_text())
    return _Locality(
        table["mtp_rows"],
        [math.log2(context) for context in table["contexts"]],
        table["hot_sizes"],
        table["hit_rates"],
    )


def _interpolate(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Linear between the points, and level beyond them."""
    i = bisect_right(xs, x)
    if i == 0:
        return ys[0]
    if i == len(xs):
        return ys[-1]
    share = (x - xs[i - 1]) / (xs[i] - xs[i - 1])
    return ys[i - 1] + share * (ys[i] - ys[i - 1])
