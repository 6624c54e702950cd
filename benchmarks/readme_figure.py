"""Draws the README's picture from the records in `docs/results`: accuracy by how many classes a batch holds.

    python benchmarks/readme_figure.py docs/figures/class-pure-groups

writes class-pure-groups.png and .svg. Nothing is trained here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from discover.lab.report.plotting import save_figure, set_title, styled
from discover.lab.report.style import series_styles

RESULTS = Path(__file__).parent.parent / "docs" / "results"
GROUPS = (1, 2, 4, 8)
LINES = {  # the rows of a line, where several the best of them on validation; its name, and how far that is moved up
    ("discover_muon-damped",): ("Discover before Muon, damped", 3.2),
    ("discover_muon",): ("Discover before Muon", -2.4),
    ("muon", "muon-fresh"): ("Muon", 0.0),
    ("discover",): ("Discover", 0.0),
    ("adam",): ("Adam", 1.2),
    ("momentum",): ("Momentum", -1.4),
}


def load_rows() -> dict[str, dict[str, Any]]:
    """The rows of both records by label; those that both have are Muon's record's."""
    records = [json.loads((RESULTS / f"{name}.json").read_text()) for name in ("results-d-purity", "results-h-groups")]
    return {row["label"]: row for record in records for row in record["rows"]}


def best(rows: dict[str, dict[str, Any]], names: tuple[str, ...], groups: int) -> dict[str, Any]:
    """The test accuracy of the row that is best on validation."""
    where = f"{groups} group{'s' if groups > 1 else ''}"
    labels = [f"{name} {where}" if "-" in name else f"{name}-{where}" for name in names]
    return max((rows[label] for label in labels), key=lambda row: row["validation_accuracy"]["mean"])["test_accuracy"]


def draw() -> Figure:
    """Test accuracy by the number of class-pure groups in a batch: mean and standard deviation over the seeds."""
    rows = load_rows()
    figure = Figure(figsize=(8, 4.6))
    axes = figure.add_axes((0.06, 0.1, 0.93, 0.76))
    for names, (title, shift) in LINES.items():
        damped = names[0].endswith("damped")
        style = series_styles([names[0].partition("-")[0]])[names[0].partition("-")[0]]
        found = [best(rows, names, groups) for groups in GROUPS]
        mean, std = ([100 * one[key] for one in found] for key in ("mean", "std"))
        axes.errorbar(
            range(len(GROUPS)), mean, std, color=style.color, linewidth=2.2, capsize=3, elinewidth=1.2,
            linestyle=(0, (1.2, 1)) if damped else (0, style.dash) if style.dash else "solid",
            marker="*" if damped else style.marker, markersize=10 if damped else 6.5,
            markerfacecolor=style.color if style.filled else "white",
        )  # fmt: skip
        axes.annotate(
            title, (0, mean[0] + shift), xytext=(-9, 0), textcoords="offset points", color=style.color,
            va="center", ha="right", weight="bold" if "Discover" in title else "normal",
        )  # fmt: skip
    shuffled = 100 * rows["muon-shuffled"]["test_accuracy"]["mean"]
    muon = series_styles(["muon"])["muon"]
    axes.axhline(shuffled, color=muon.color, linestyle=(0, (5, 2)), linewidth=1.2)
    axes.annotate(
        "Muon, shuffled batches", (0, shuffled), xytext=(-9, 2), textcoords="offset points", color=muon.color,
        va="bottom", ha="right",
    )  # fmt: skip
    set_title(
        axes,
        "Test accuracy (%) when every group of a batch holds one class",
        "CIFAR-10 (JPEG), batches of 256, classes drawn at random, WideResNet-16-2, 10 epochs; "
        "n = 3 seeds, mean ± standard deviation, learning rates chosen on the validation split",
    )
    axes.set_xlabel("class-pure groups in a batch")
    axes.set_xticks(range(len(GROUPS)), [str(groups) for groups in GROUPS])
    axes.set_xlim(-1.7, len(GROUPS) - 0.85)
    axes.set_ylim(0, 95)
    axes.grid(axis="x", visible=False)
    return figure


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    with styled():
        save_figure(draw(), Path(sys.argv[1]).parent, Path(sys.argv[1]).name)


if __name__ == "__main__":
    main()
