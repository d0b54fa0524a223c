"""The picture of a run: hit rate against hot size, and misses over time. Legible in black and white."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

_LINES = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"))


def draw(
    path: Path,
    title: str,
    curve: Sequence[tuple[int, float]],
    timelines: dict[str, Sequence[int]],
    *,
    used: int | None = None,
    per_step: int,
) -> None:
    """Write a PNG.

    ``curve``: hit rate of each hot size, ``used`` the one of the run; ``timelines``: rows loaded in each step, by
    label; ``per_step``: references of a step, the most that can miss.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), dpi=110, layout="constrained")
    figure.suptitle(title, fontsize=10)
    left, right = figure.subplots(1, 2, width_ratios=(2, 3))
    _hit_rates(left, curve, used)
    _misses(right, timelines, per_step)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")


def _hit_rates(axes: Any, curve: Sequence[tuple[int, float]], used: int | None) -> None:
    sizes = [size for size, _ in curve]
    rates = [100 * rate for _, rate in curve]
    axes.plot(sizes, rates, "k-o", markerfacecolor="white", clip_on=False, zorder=3)
    for size, rate in zip(sizes, rates, strict=True):
        if size == used:
            axes.plot([size], [rate], "ko", markersize=9, clip_on=False, zorder=4)
            right = size > max(sizes) / 2
            axes.annotate(
                f"this run: {rate:.0f} %",
                (size, rate),
                xytext=(-9, 7) if right else (10, -14),
                textcoords="offset points",
                ha="right" if right else "left",
            )
    axes.set(xlabel="hot size (rows of one request)", ylabel="hit rate (%)", ylim=(0, 100))
    axes.set_xlim(left=0)
    axes.grid(color="0.85", zorder=0)


def _misses(axes: Any, timelines: dict[str, Sequence[int]], per_step: int) -> None:
    for i, (label, misses) in enumerate(timelines.items()):
        line, marker = _LINES[i % len(_LINES)]
        axes.plot(
            range(len(misses)),
            misses,
            line,
            color=str(0.45 * i / max(1, len(timelines) - 1)),
            marker=marker,
            markersize=3.5,
            markevery=max(1, len(misses) // 12),
            linewidth=1.2,
            label=label,
        )
    axes.axhline(per_step, color="0.5", linewidth=0.8)
    axes.annotate(
        "all references",
        (1, per_step),
        xycoords=("axes fraction", "data"),
        xytext=(-4, -11),
        textcoords="offset points",
        ha="right",
        fontsize=8,
    )
    axes.set(xlabel="step", ylabel="rows loaded in a step", ylim=(0, 1.05 * per_step))
    axes.set_xlim(left=0)
    axes.grid(color="0.85")
    if len(timelines) > 1:
        # Above the axes: no corner is free in every run.
        axes.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False)
