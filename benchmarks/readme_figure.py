"""Draws the README's picture from the records of `discover compare digits --out runs/demo`.

    python benchmarks/readme_figure.py runs/demo docs/figures/class-pure-batches

writes class-pure-batches.png and .svg. Nothing is trained here: the curves are those that the comparison recorded.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from discover.lab.report import load_report
from discover.lab.report.plotting import save_figure
from discover.lab.report.style import is_clustered, series_styles

LINES = {  # label of the run: what it is called here, and how far its name is moved up, in percent
    "momentum-shuffled": ("momentum, shuffled batches", 0.0),
    "discover": ("Discover", -1.5),
    "adam": ("Adam", 2.0),
    "momentum": ("momentum", -2.0),
}


def draw(records: Path) -> Figure:
    """Validation accuracy by step: mean over the seeds, with a band of one standard deviation."""
    runs = {run.label: run for run in load_report(records).runs}
    missing = [label for label in LINES if label not in runs]
    if missing:
        raise SystemExit(f"{records} has no run of {', '.join(missing)}; make it with: discover compare digits")
    styles = series_styles(list(LINES))
    figure = Figure(figsize=(7.2, 3.9), layout="constrained")
    axes = figure.add_subplot()
    for label, (name, shift) in LINES.items():
        split, curve = runs[label].eval_curve("accuracy")
        mean, std = ([100 * value for value in values] for values in (curve.mean, curve.std))
        style = styles[label]
        dash = (0, style.dash) if style.dash else "solid"
        axes.plot(curve.steps, mean, color=style.color, linestyle=dash, linewidth=2.2)
        low, high = [m - s for m, s in zip(mean, std)], [m + s for m, s in zip(mean, std)]
        axes.fill_between(curve.steps, low, high, color=style.color, alpha=0.13, linewidth=0)
        axes.annotate(
            name, (curve.steps[-1], mean[-1] + shift), xytext=(6, 0), textcoords="offset points",
            color=style.color, va="center", weight="bold" if is_clustered({"label": label}) else "normal",
        )  # fmt: skip
        seeds = len(runs[label].summary["seeds"])
    axes.set_title(f"{split.capitalize()} accuracy (%) when every batch holds one class", loc="left", weight="bold")
    axes.set_xlabel(f"step    (digits, 32 examples of one class a batch; mean ± standard deviation, n = {seeds} seeds)")
    axes.set_xlim(0, curve.steps[-1])
    axes.set_ylim(0, 100)
    axes.grid(axis="y", color="#dfe3e8")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "discover"}):
        figure = draw(Path(sys.argv[1]))
        save_figure(figure, Path(sys.argv[2]).parent, Path(sys.argv[2]).name)


if __name__ == "__main__":
    main()
