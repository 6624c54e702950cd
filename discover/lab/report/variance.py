"""The between-cluster variance along training runs that tracked it (`--track-variance`): a figure like the paper's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from discover.lab.report.load import Report, RunRecord, hardware
from discover.lab.report.plotting import save_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FIELDS = {"between_paper": "the paper's estimate", "between_drawn": "batches as drawn"}


class VarianceCurve(NamedTuple):
    """A run's tracked variance, by window of steps."""

    steps: list[int]  # the windows' ends
    means: list[float]  # over the seeds
    low: list[float]  # the lowest seed
    high: list[float]  # the highest seed
    seeds: int


def variance_curve(run: RunRecord, field: str = "between_paper", window: int = 100) -> VarianceCurve:
    """A run's tracked variance as means per `window` steps; a ValueError where it has no such lines."""
    found: dict[int, dict[Any, list[float]]] = {}
    for line in run.metrics:
        if line.get("kind") == "variance" and line.get(field) is not None:  # a diverged member has none
            end = -(-line["step"] // window) * window
            found.setdefault(end, {}).setdefault(line.get("member", line["seed"]), []).append(line[field])
    if not found:
        raise ValueError(f"the run {run.label} has no {field}: train it with --track-variance every=100")
    steps = sorted(found)
    by_seed = [[fmean(values) for values in found[step].values()] for step in steps]
    return VarianceCurve(
        steps, [fmean(m) for m in by_seed], [min(m) for m in by_seed], [max(m) for m in by_seed], max(map(len, by_seed))
    )


def write_tracked_variance(report: Report, directory: Path) -> list[Path]:
    """Draws `variance` for those runs of a report that tracked it (`--track-variance`); nothing where none did."""
    with styled():
        figure = draw_tracked_variance(report)
        return [] if figure is None else save_figure(figure, directory, "variance")


def draw_tracked_variance(report: Report) -> Figure | None:
    """The same figure, to be put on a page; None where no run tracked its variance."""
    runs = {run.label: run for run in report.runs if _tracked_steps(run)}
    return variance_figure({report.title: runs}, _window(runs)) if runs else None


def _tracked_steps(run: RunRecord) -> list[int]:
    lines = (line for line in run.metrics if line.get("kind") == "variance" and line.get("between_paper") is not None)
    return [int(line["step"]) for line in lines]


def _window(runs: Mapping[str, RunRecord]) -> int:
    """About 20 points, whole intervals each."""
    steps = [step for run in runs.values() for step in _tracked_steps(run)]
    return min(steps) * max(1, -(-max(steps) // (20 * min(steps))))


def variance_figure(runs: Mapping[str, Mapping[str, RunRecord]], window: int) -> Figure:
    """The paper's estimate above, as drawn below, as means per `window` steps: the runs by setting and optimizer."""
    import matplotlib.pyplot as plt

    from discover.lab.report.style import series_styles

    figure, grid = plt.subplots(
        len(_FIELDS), len(runs), figsize=(5.2 * max(len(runs), 1.3), 6.0), squeeze=False, sharex="col",
        layout="constrained",
    )  # fmt: skip
    seeds = 0
    for column, (setting, members) in enumerate(runs.items()):
        styles = series_styles(list(members))
        for row, (field, words) in enumerate(_FIELDS.items()):
            axes, values = grid[row][column], []
            for name, run in members.items():
                try:
                    curve = variance_curve(run, field, window)
                except ValueError:  # older records of balanced and given batches have no "as drawn"
                    if field == "between_drawn":
                        continue
                    raise
                seeds = max(seeds, curve.seeds)
                values += [*curve.means, *curve.low, *curve.high]
                style = styles[name]
                axes.plot(curve.steps, curve.means, **style.line)
                axes.fill_between(curve.steps, curve.low, curve.high, color=style.color, alpha=0.15, linewidth=0)
            _scale(axes, values)
            axes.set_title(f"{setting}: {words}", fontsize=10)
            if column == 0:
                axes.set_ylabel("between-cluster variance")
        grid[-1][column].set_xlabel(f"step (means per {window})")
    # Above the panels: with many optimizers there is no corner that no curve runs through.
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", frameon=False, fontsize=8, ncols=min(len(labels), 5))
    figure.text(0.005, -0.02, _note(runs, seeds), fontsize=7.5, color="#5b6270", va="top")
    return figure


def _scale(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic axis; straight around 0 where an unbiased estimate of almost nothing falls below it."""
    positive = [value for value in values if value > 0]
    if not values or min(values) > 0:
        axes.set_yscale("log")
        return
    around = max(min(positive, default=1.0), 1e-4 * max(positive, default=1.0), -min(values), 1e-30)
    axes.set_yscale("symlog", linthresh=10.0 ** math.ceil(math.log10(around)))
    axes.axhline(0.0, color="#9aa1ab", linewidth=0.8)


def _note(runs: Mapping[str, Mapping[str, RunRecord]], seeds: int) -> str:
    some = next(iter(next(iter(runs.values())).values()))
    device, version = hardware(some.environment), (some.environment.get("packages") or {}).get("jax")
    words = f"mean over {seeds} seeds, bands from the lowest to the highest" if seeds > 1 else "1 seed"
    return "; ".join(part for part in (words, device, f"jax {version}" if version else None) if part)
