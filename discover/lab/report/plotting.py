"""What all figures share: one look, and files that are the same bytes for the same records."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["GRID", "INK", "LOOK", "save_figure", "set_title", "styled", "tint"]

INK, GRID = "#22252b", "#dfe3e8"
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
}
"""Settings of matplotlib for every figure."""


@contextmanager
def styled() -> Iterator[None]:
    """Draws in the report's look, without a window and without touching the user's settings."""
    import matplotlib.pyplot as plt

    with plt.rc_context({**LOOK, "axes.grid": True, "grid.color": "#e6e9ee", "grid.linewidth": 0.7, "backend": "Agg"}):
        yield


def save_figure(figure: Figure, directory: Path, name: str, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Writes `directory/name.png` and `.svg`, and closes the figure."""
    import matplotlib.pyplot as plt

    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for kind in formats:
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


def tint(color: str, amount: float = 0.62) -> str:
    """The colour mixed with white, as the fill behind a hatch."""
    channels = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(c + (255 - c) * amount):02x}" for c in channels)
