"""The figure and the table of a sweep, from its record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from discover.lab.records import read_json
from discover.lab.report.plotting import INK, save_figure, styled
from discover.lab.report.style import series_name, series_styles
from discover.lab.report.tables import MISSING, Table, accuracy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SYMBOLS = {
    "learning_rate": "learning rate μ", "beta": "β", "nu": "ν", "alpha": "α", "alpha_n": "α_n", "beta1": "β₁",
    "tail_fraction": "tail fraction",
}  # fmt: skip


def sweep_table(record: dict[str, Any], limit: int = 10) -> Table:
    """The best trials, best first; then how the others ended."""
    names: list[str] = list(record["plan"]["space"])
    complete = [trial for trial in record["trials"] if trial["state"] == "complete"]
    complete.sort(key=lambda trial: (-trial["validation_accuracy"]["mean"], trial["number"]))
    rows = tuple(
        (
            str(trial["number"]),
            *(f"{trial['params'][name]:g}" for name in names),
            accuracy(trial["validation_accuracy"]) or MISSING,
        )
        for trial in complete[:limit]
    )
    headers = ("trial", *(_SYMBOLS.get(name) or name for name in names), "validation accuracy")
    return Table(headers, rows, tuple(row[0] for row in rows), 0 if rows else None)


def write_sweep_figure(directory: Path) -> list[Path]:
    """Draws ``figures/sweep.png`` and ``.svg`` from the `sweep.json` in ``directory``; nothing where no trial ended."""
    record = read_json(directory / "sweep.json")
    if not any(trial["state"] == "complete" for trial in record["trials"]):
        return []
    with styled():
        return save_figure(_draw(record), directory / "figures", "sweep")


def _draw(record: dict[str, Any]) -> Figure:
    """Validation accuracy by each hyperparameter that was searched.

    Every point is a trial; the line joins the best trials of a grid's values. What was given up early is a cross at
    the accuracy it had then, what diverged a cross at the bottom.
    """
    import matplotlib.pyplot as plt

    space = {name: axis for name, axis in record["plan"]["space"].items() if len(axis["values"]) > 1}
    space = space or record["plan"]["space"]
    width = max(4.6, 3.1 * len(space) + 0.9)
    figure, panels = plt.subplots(1, len(space), figsize=(width, 3.7), sharey=True, squeeze=False, layout="constrained")
    for column, (name, axis) in enumerate(space.items()):
        _draw_axis(panels[0][column], record, name, axis)
    panels[0][0].set_ylabel("validation accuracy (%)")
    seeds, count = len(record["seeds"]), len(record["trials"])
    note = f"{count} trials, mean of {seeds} seed{'s' if seeds > 1 else ''} each"
    title = f"{series_name(record['optimizer'])} on {record['preset']}: {note}"
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=11.5)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8.5)
    return figure


def _draw_axis(axes: Axes, record: dict[str, Any], name: str, axis: dict[str, Any]) -> None:
    color = series_styles([record["optimizer"]])[record["optimizer"]].color
    complete = [trial for trial in record["trials"] if trial["state"] == "complete"]
    points = [(trial["params"][name], 100 * trial["validation_accuracy"]["mean"]) for trial in complete]
    if record["plan"]["search"] == "grid":
        best: dict[float, float] = {}
        for x, y in points:
            best[x] = max(y, best.get(x, y))
        xs = sorted(best)
        axes.plot(xs, [best[x] for x in xs], color=color, linewidth=1.6, zorder=2, label="best at this value")
    axes.scatter(
        [x for x, _ in points],
        [y for _, y in points],
        s=26,
        facecolor="white",
        edgecolor=color,
        zorder=3,
        label="trial",
    )
    given_up = [t for t in record["trials"] if t["state"] == "pruned"]
    if given_up:
        x, y = [t["params"][name] for t in given_up], [100 * t["last"]["value"] for t in given_up]
        axes.scatter(x, y, marker="x", s=22, color="#767676", linewidth=1.1, zorder=2, label="given up early")
    diverged = [t["params"][name] for t in record["trials"] if t["state"] == "diverged"]
    if diverged:
        bottom = [0.0] * len(diverged)
        axes.scatter(diverged, bottom, marker="+", s=30, color=INK, linewidth=1.1, zorder=2, label="diverged")
    winner = next((t for t in complete if t["number"] == record["winner"]), None)
    if winner is not None:
        at = (winner["params"][name], 100 * winner["validation_accuracy"]["mean"])
        axes.scatter(*at, marker="*", s=170, color=color, edgecolor=INK, linewidth=0.8, zorder=4, label="winner")
    if axis["shape"] == "log":
        axes.set_xscale("log")
    axes.set_xlabel(_SYMBOLS.get(name, name))
    axes.tick_params(length=0, which="both")
