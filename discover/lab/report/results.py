"""Figures of our results, from the records that `discover reproduce` leaves: by clusters, by groups, by β and ν."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discover.lab.records import read_json
from discover.lab.report import load_report, write_report
from discover.lab.report.load import facts_line
from discover.lab.report.plotting import INK, draw_bar, save_figure, set_title, styled
from discover.lab.report.style import is_clustered, optimizer_of, series_name, series_styles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CLUSTERS: dict[str, str] = {"augmentations": "augmentations\n(flip, Mixup, CutMix)", "kmeans": "k-means"}


def write_panel(directory: Path) -> list[Path]:
    """Draws what the `comparison.json` in ``directory`` says should be drawn, and a page too for comparisons.

    Returns:
        The files written; none while no row is finished.
    """
    record = read_json(directory / "comparison.json")
    if not record["rows"]:
        return []
    if record["figure"] == "comparison":
        written = write_report(load_report(directory))
        return [*written.figures, written.page]
    with styled():
        return save_figure(_PAINTERS[record["figure"]](record), directory / "figures", record["panel"])


def write_drift(directory: Path) -> list[Path]:
    """Draws ``figures/drift.png`` and ``.svg`` from the `drift.json` in ``directory``."""
    record = read_json(directory / "drift.json")
    if not record["rows"]:
        return []
    with styled():
        return save_figure(_drift(record), directory / "figures", "drift")


def _structures(record: dict[str, Any]) -> Figure:
    import matplotlib.pyplot as plt

    rows = [row for row in record["rows"] if not row["control"]]
    structures: list[str] = list(dict.fromkeys(str(row["facets"]["clusters"]) for row in rows))
    optimizers = list(dict.fromkeys(row["optimizer"] for row in rows))
    styles = series_styles(optimizers)
    figure, axes = plt.subplots(figsize=(7.2, 4.0), layout="constrained")
    width = 0.8 / len(optimizers)
    for k, optimizer in enumerate(optimizers):
        style = styles[optimizer]
        for row in rows:
            mean, std = _percent(row)
            if row["optimizer"] == optimizer and mean is not None:
                at = structures.index(row["facets"]["clusters"]) + (k - (len(optimizers) - 1) / 2) * width
                draw_bar(axes, at, mean, std or 0.0, style, 0.9 * width)
        axes.bar([0], [0], label=style.name, **style.bar)
    _reference_lines(axes, record)
    axes.set_xticks(range(len(structures)), [_CLUSTERS.get(name) or name for name in structures])
    axes.grid(False, axis="x")
    axes.set_ylim(0, 108)
    axes.set_yticks(range(0, 101, 20))
    _finish(axes, record)
    axes.legend(frameon=False, fontsize=8.5, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4)
    return figure


def _groups(record: dict[str, Any]) -> Figure:
    import matplotlib.pyplot as plt

    rows = [row for row in record["rows"] if not row["control"]]
    lines = [row["facets"].get("optimizer", row["optimizer"]) for row in rows]
    optimizers = list(dict.fromkeys(lines))
    styles = series_styles(optimizers)
    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for optimizer in optimizers:
        own = [(row["facets"]["groups"], *_percent(row)) for row, line in zip(rows, lines) if line == optimizer]
        own = sorted(point for point in own if point[1] is not None)
        x, mean, std = ([point[k] or 0 for point in own] for k in range(3))
        axes.errorbar(x, mean, yerr=std, capsize=3, zorder=3, **styles[optimizer].line)
    _reference_lines(axes, record)
    numbers = sorted({row["facets"]["groups"] for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(numbers, [str(number) for number in numbers])
    axes.minorticks_off()
    axes.set_xlabel("class-pure groups in a batch (G); the batch has the same size everywhere")
    axes.set_ylim(bottom=0)
    _finish(axes, record)
    axes.legend(frameon=False, fontsize=8.5, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, handlelength=3.2)
    return figure


def _grid(record: dict[str, Any]) -> Figure:
    import matplotlib.pyplot as plt
    import numpy as np

    rows = record["rows"]
    betas = sorted({row["facets"]["beta"] for row in rows})
    nus = sorted({row["facets"]["nu"] for row in rows})
    values = np.full((len(betas), len(nus)), np.nan)
    size = (max(4.8, 1.6 + 1.05 * len(nus)), max(3.4, 1.6 + 0.72 * len(betas)))
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    for row in rows:
        mean, _ = _percent(row)
        if mean is not None:
            values[betas.index(row["facets"]["beta"]), nus.index(row["facets"]["nu"])] = mean
    image = axes.imshow(values, cmap="cividis", aspect="auto", origin="lower")
    best = np.unravel_index(np.nanargmax(values), values.shape) if np.isfinite(values).any() else None
    middle = (np.nanmin(values) + np.nanmax(values)) / 2 if best is not None else 0.0
    for row in rows:
        y, x = betas.index(row["facets"]["beta"]), nus.index(row["facets"]["nu"])
        mean, std = _percent(row)
        text = "diverged" if mean is None else f"{mean:.1f}" + (f"\n± {std:.1f}" if std else "")
        color = INK if mean is not None and mean > middle else "white"
        axes.text(
            x, y, text, ha="center", va="center", fontsize=9, color=color if mean is not None else INK,
            fontweight="bold" if best is not None and (y, x) == tuple(best) else "normal",
        )  # fmt: skip
    axes.set_xticks(range(len(nus)), [f"{nu:g}" for nu in nus])
    axes.set_yticks(range(len(betas)), [f"{beta:g}" for beta in betas])
    axes.set(xlabel="ν: how much of the step is momentum", ylabel="β: how long a cluster remembers")
    axes.grid(False)
    figure.colorbar(image, ax=axes, label="test accuracy (%)")
    _finish(axes, record)
    return figure


def _ranking(record: dict[str, Any]) -> Figure:
    """Bars that lie down, the best on top, so that many names can be read."""
    import matplotlib.pyplot as plt

    known = [(row, *_percent(row)) for row in record["rows"]]
    ranked = sorted(((mean, std or 0.0, row) for row, mean, std in known if mean is not None), key=lambda one: one[0])
    styles = series_styles([row["label"] for _, _, row in ranked])
    figure, axes = plt.subplots(figsize=(6.8, 1.4 + 0.27 * len(ranked)), layout="constrained")
    for at, (mean, std, row) in enumerate(ranked):
        ours = is_clustered(row) and optimizer_of(row["label"]) is not None
        axes.barh(at, mean, height=0.66, zorder=2, color="#D55E00" if ours else "#9FB4C7")
        axes.errorbar(mean, at, xerr=std, fmt="none", ecolor=INK, elinewidth=1.2, capsize=3, zorder=4)
        axes.annotate(
            f"{mean:.1f}", (mean + std, at), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8.5,
            fontweight="bold" if ours else "normal",
        )  # fmt: skip
    axes.set_yticks(range(len(ranked)), [styles[row["label"]].name for _, _, row in ranked], fontsize=9)
    axes.set_xlim(0, 100)
    axes.set_xlabel("test accuracy (%); orange: ours")
    axes.grid(False, axis="y")
    _finish(axes, record)
    return figure


def _drift(record: dict[str, Any]) -> Figure:
    import matplotlib.pyplot as plt

    styles = series_styles([row["label"] for row in record["rows"]])
    figure, axes = plt.subplots(figsize=(6.8, 4.4), layout="constrained")
    for row in record["rows"]:
        lines = [line for line in row["lines"] if line["drift"] is not None and line["drift"] > 0]
        axes.plot(
            [line["step"] for line in lines],
            [line["drift"] for line in lines],
            markevery=max(1, len(lines) // 8),
            **styles[row["label"]].line,
        )
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel(r"$\|\bar{g} - \sum_n p_n g_n\|\;/\;\|\sum_n p_n g_n\|$")
    _finish(axes, record)
    axes.legend(frameon=False, fontsize=8.5, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, handlelength=3.2)
    return figure


_PAINTERS: dict[str, Callable[[dict[str, Any]], Figure]] = {
    "structures": _structures,
    "groups": _groups,
    "grid": _grid,
    "ranking": _ranking,
}
"""By what a panel's record says, where it is no plain comparison."""


def _reference_lines(axes: Any, record: dict[str, Any]) -> None:
    controls = [row for row in record["rows"] if row["control"]]
    for number, row in enumerate(controls):
        mean, _ = _percent(row)
        if mean is not None:
            dash = ((0, (1.2, 2.0)), (0, (6.0, 2.0, 1.2, 2.0)), "--")[min(number, 2)]
            axes.axhline(
                mean, color="#222222", linestyle=dash, linewidth=1.4, zorder=1, label=series_name(row["label"])
            )


def _finish(axes: Any, record: dict[str, Any]) -> None:
    title = f"{record['title']}{' (%)' if record['figure'] in ('structures', 'groups') else ''}"
    set_title(axes, title, facts_line(record))
    axes.tick_params(length=0, which="both")


def _percent(row: dict[str, Any]) -> tuple[float | None, float | None]:
    found = row.get("test_accuracy") or {}
    mean, std = found.get("mean"), found.get("std")
    if mean is None or not math.isfinite(mean):
        return None, None
    return 100 * mean, 100 * std if std and len(found.get("values") or []) > 1 else None
