"""The plot of `rendezvous`: time against N, both axes logarithmic. The only file that imports matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

# The series differ in shape, and in colors that color-blind readers can distinguish.
LOOKS = {"elastic": ("#0072B2", "o", "elastic-core"), "torchrun": ("#D55E00", "s", "stock torch")}


def draw(measurements: Mapping[str, Any], path: Path) -> None:
    """Draw every run as a dot, the medians as a line, and a cross for each N at which torchrun failed."""
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for launcher, (color, mark, label) in LOOKS.items():
        times = {int(nodes): seconds for nodes, seconds in measurements["seconds"].get(launcher, {}).items() if seconds}
        if times:
            _line(axes, times, color, mark, label)
    beyond = {int(nodes): seen["seconds"] for nodes, seen in measurements["beyond"].items() if seen["errors"]}
    if beyond:
        axes.plot(*_sorted(beyond), "x", color=LOOKS["torchrun"][0], markersize=9, label="stock torch gave up here")
    _axes(axes, sorted({int(n) for of_one in measurements["seconds"].values() for n in of_one} | set(beyond)))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, metadata={"Software": None})
    pyplot.close(figure)


def _line(axes: Any, times: Mapping[int, Sequence[float]], color: str, mark: str, label: str) -> None:
    for nodes, seconds in times.items():
        axes.plot([nodes] * len(seconds), seconds, mark, color=color, alpha=0.3, markersize=4)
    axes.plot(*_sorted({nodes: median(of_n) for nodes, of_n in times.items()}), f"{mark}-", color=color, label=label)


def _sorted(points: Mapping[int, float]) -> tuple[list[int], list[float]]:
    order = sorted(points)
    return order, [points[nodes] for nodes in order]


def _axes(axes: Any, sizes: Sequence[int]) -> None:
    axes.set(xscale="log", yscale="log", xlabel="agents (N)", ylabel="first join to last return (s)")
    axes.set_title("Rendezvous of N agents on one machine")
    axes.xaxis.set_major_locator(FixedLocator(list(sizes)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend()
