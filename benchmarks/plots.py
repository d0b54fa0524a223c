"""Pictures of benchmark figures, legible in black and white."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

_STYLES = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"))


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")


def draw_ratios(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Time of every contender over that of the op, one bar each."""
    from matplotlib.figure import Figure

    labels = [f"{r['op']} {r['case']}: {r['contender']}" for r in rows]
    figure = Figure(figsize=(9, 1 + 0.22 * len(rows)), dpi=110, layout="constrained")
    axes = figure.subplots()
    shades = [
        "white" if r["limit"] else "0.3" if r["contender"] == "hisparse" else "0.7" for r in rows
    ]
    axes.barh(labels, [r["x_hisparse"] for r in rows], color=shades, edgecolor="black")
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="time over that of hisparse (white: what the machine allows)")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.tick_params(axis="y", labelsize=7)
    _save(figure, path)


def draw_scaling(path: Path, series: dict[str, list[tuple[float, dict[str, float]]]]) -> None:
    """One panel a parameter: microseconds of each op against it."""
    from matplotlib.figure import Figure

    columns = 2
    lines = -(-len(series) // columns)
    figure = Figure(figsize=(9, 2.9 * lines), dpi=110, layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes, (parameter, points) in zip(panels, series.items(), strict=False):
        for (line, marker), name in zip(_STYLES, points[0][1], strict=False):
            axes.plot(
                [x for x, _ in points],
                [times[name] * 1e6 for _, times in points],
                color="black",
                linestyle=line,
                marker=marker,
                markerfacecolor="white",
                label=name,
            )
        axes.set(xlabel=parameter, ylabel="us a call", yscale="log")
        values = [x for x, _ in points]
        if 0 < 20 * min(values) < max(values):
            axes.set_xscale("log", base=2)
        if len(values) < 8:
            axes.set_xticks(
                values, [f"{x:g}" if x < 10_000 else f"{x / 1024:.0f}K" for x in values]
            )
            axes.minorticks_off()
        axes.grid(color="0.9")
    panels[0].legend(fontsize=7)
    for axes in panels[len(series) :]:
        axes.axis("off")
    _save(figure, path)
