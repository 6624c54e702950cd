"""The paper's three figures, from records: training loss, validation accuracy, last-step accuracy.

Where a comparison is judged by its loss, as text is, the last two show the loss.

Every figure is written as PNG (for a slide) and SVG (for a page). Curves differ in colour, line and marker,
bars in colour and hatch, so they stay apart for colour-blind readers and when printed in grey.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discover.lab.records import mean_std
from discover.lab.report.load import Curve, Report, RunRecord, facts_line
from discover.lab.report.plotting import draw_bar, save_figure, set_title, styled
from discover.lab.report.style import Style, series_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURES = ("training-loss", "validation-accuracy", "last-step-accuracy")
BY_LOSS = ("training-loss", "validation-loss", "last-step-loss")
_SCALES = {"accuracy": (100.0, "%"), "loss": (1.0, "nats")}


def write_figures(report: Report, directory: str | Path) -> list[Path]:
    """Draw the three figures of ``report`` into ``directory`` (made where it is missing); returns the files."""
    with styled():
        return [path for name in figures_of(report) for path in save_figure(draw(report, name), Path(directory), name)]


def figures_of(report: Report) -> tuple[str, ...]:
    """The names of a report's figures, by what it is judged by."""
    return BY_LOSS if report.comparison.get("measure") == "loss" else FIGURES


def draw(report: Report, name: str) -> Figure:
    """Draw one of :func:`figures_of` and return it as a matplotlib figure, without any global state of pyplot."""
    from matplotlib.figure import Figure as NewFigure

    painters = {
        "training-loss": _training_loss,
        "validation-accuracy": partial(_evaluated, quantity="accuracy"),
        "validation-loss": partial(_evaluated, quantity="loss"),
        "last-step-accuracy": partial(_last_step, quantity="accuracy"),
        "last-step-loss": partial(_last_step, quantity="loss"),
    }
    styles = series_styles([run.label for run in report.runs])
    with styled():
        wide = max(6.4, 0.84 * len(report.runs)) if name.startswith("last-step") else 6.4  # room for the bars' names
        figure = NewFigure(figsize=(wide, 4.0), layout="constrained")
        axes = figure.add_subplot()
        painters[name](axes, report.runs, styles)
        facts = facts_line(report.comparison) if report.comparison.get("facts") else ""
        if facts:
            what = report.comparison.get("title")
            set_title(axes, axes.get_title(loc="left"), f"{what}, {facts}" if what else facts)
    return figure


def _training_loss(axes: Axes, runs: Sequence[RunRecord], styles: dict[str, Style]) -> None:
    curves = {run.label: smooth(run.curve("loss", kind="train")) for run in runs}
    _curves(axes, curves, styles)
    axes.set(title="Training loss", xlabel="step")


def _evaluated(axes: Axes, runs: Sequence[RunRecord], styles: dict[str, Style], *, quantity: str) -> None:
    found = {run.label: run.eval_curve(quantity) for run in runs}
    split = "test" if all(name == "test" for name, _ in found.values()) else "validation"
    scale, unit = _SCALES[quantity]
    _curves(axes, {label: curve for label, (_, curve) in found.items()}, styles, scale=scale)
    axes.set(title=f"{split.capitalize()} {quantity} ({unit})", xlabel="step")
    if quantity == "accuracy":
        axes.set_ylim(top=min(100.5, axes.get_ylim()[1]))


def _curves(axes: Axes, curves: dict[str, Curve], styles: dict[str, Style], scale: float = 1.0) -> None:
    for order, (label, curve) in enumerate(curves.items()):
        if not len(curve):
            continue
        style = styles[label]
        mean = [scale * v for v in curve.mean]
        low = [scale * (m - s) for m, s in zip(curve.mean, curve.std)]
        high = [scale * (m + s) for m, s in zip(curve.mean, curve.std)]
        # Markers are spread unevenly from curve to curve, so that they do not hide one another.
        every = max(1, len(curve) // 8)
        axes.plot(curve.steps, mean, markevery=(order % every, every), zorder=3, **style.line)
        axes.fill_between(curve.steps, low, high, color=style.color, alpha=0.13, linewidth=0, zorder=2)
    axes.tick_params(length=0)
    if any(len(curve) for curve in curves.values()):
        axes.margins(x=0.02)
        options: dict[str, Any] = {"frameon": False, "fontsize": 8.5, "handlelength": 3.2}
        if len(curves) < 7:
            axes.legend(**options)
        else:  # it would hide a curve wherever it was
            axes.figure.legend(loc="outside lower center", ncols=4, **options)


def _last_step(axes: Axes, runs: Sequence[RunRecord], styles: dict[str, Style], *, quantity: str) -> None:
    finals = {run.label: run.final(quantity) for run in runs}
    finals = {label: found for label, found in finals.items() if found[1]}
    spreads = {label: mean_std(values) for label, (_, values) in finals.items()}
    positions = range(len(spreads))
    scale, unit = _SCALES[quantity]
    for position, (label, (mean, std)) in zip(positions, spreads.items()):
        draw_bar(axes, position, scale * mean, scale * std, styles[label], 0.68, digits=1 if scale > 1 else 2)
    split = "test" if all(name == "test" for name, _ in finals.values()) else "validation"
    seeds = max((len(values) for _, values in finals.values()), default=0)
    note = f", mean ± std over {seeds} seeds" if seeds > 1 else ""
    axes.set_title(f"Last-step {split} {quantity} ({unit}){note}")
    names = [styles[label].name.replace(", ", ",\n").replace("-", "-\n").replace(" (", "\n(") for label in spreads]
    axes.set_xticks(list(positions), names, fontsize=8.5)
    if quantity == "accuracy":
        axes.set_ylim(0, 108)
        axes.set_yticks(range(0, 101, 20))
    axes.margins(y=0.1)  # room for the numbers
    axes.grid(False, axis="x")
    axes.tick_params(length=0)


def smooth(curve: Curve, points: int = 120) -> Curve:
    """Average neighbouring steps so that at most ``points`` remain; a shorter curve is returned as it is.

    Losses of single batches jump, the more so the fewer clusters a batch holds. The means and the standard
    deviations over the seeds are averaged over the steps of each bin; the bin is drawn at its last step.
    """
    size = -(-len(curve) // points)
    if size <= 1:
        return curve
    bins = [slice(start, min(start + size, len(curve))) for start in range(0, len(curve), size)]
    return Curve(
        tuple(curve.steps[b][-1] for b in bins),
        tuple(sum(curve.mean[b]) / len(curve.mean[b]) for b in bins),
        tuple(sum(curve.std[b]) / len(curve.std[b]) for b in bins),
    )
