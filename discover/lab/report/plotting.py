"""What all figures share: one look, and files that are the same bytes for the same records."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discover.lab.report.style import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#22252b"
LOOK: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Inter", "Helvetica Neue", "Arial", "Liberation Sans", "DejaVu Sans"],
    "font.size": 10,
    "axes.edgecolor": "#9aa1ab",
    "axes.labelcolor": INK,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "hatch.linewidth": 0.9,
    "svg.fonttype": "none",
    "svg.hashsalt": "discover",  # the same records give the same bytes
    "figure.dpi": 100,
    "axes.grid": True,
    "grid.color": "#e6e9ee",
    "grid.linewidth": 0.7,
    "backend": "Agg",
}
"""Settings of matplotlib for every figure."""


@contextmanager
def styled() -> Iterator[None]:
    """Draws in the report's look, without a window and without touching the user's settings."""
    import matplotlib.pyplot as plt

    with plt.rc_context(LOOK), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Creating legend")  # that a busy machine took a second to place it
        yield


def save_figure(figure: Figure, directory: Path, name: str) -> list[Path]:
    """Writes `directory/name.png` and `.svg`, and closes the figure."""
    import matplotlib.pyplot as plt

    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for kind in ("png", "svg"):
        path = directory / f"{name}.{kind}"
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(path, dpi=150, bbox_inches="tight", metadata=metadata)
        written.append(path)
    plt.close(figure)
    return written


def set_title(axes: Axes, title: str, facts: str) -> None:
    """A title, and below it in small print what was measured and where."""
    figure: Any = axes.figure
    unbroken = facts.replace(" = ", "\u00a0=\u00a0")
    lines = textwrap.wrap(unbroken, int(15 * figure.get_figwidth()))  # letters to an inch
    axes.set_title(title, loc="left", pad=11 * (1 + len(lines)))
    axes.annotate(
        "\n".join(lines), (0, 1), xytext=(0, 7), xycoords="axes fraction", textcoords="offset points", fontsize=8.5,
        color="#5b626d",
    )  # fmt: skip


def draw_bar(axes: Axes, at: float, mean: float, std: float, style: Style, width: float, *, digits: int = 1) -> None:
    """A bar with its whisker and its number above."""
    axes.bar(at, mean, width=width, zorder=2, **style.bar)
    if std > 0:
        axes.errorbar(at, mean, yerr=std, fmt="none", ecolor=INK, elinewidth=1.3, capsize=4, zorder=4)
    axes.annotate(
        f"{mean:.{digits}f}", (at, mean + std), xytext=(0, 4), textcoords="offset points", ha="center", va="bottom",
        fontsize=9, fontweight="bold", zorder=5,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.6},
    )  # fmt: skip
