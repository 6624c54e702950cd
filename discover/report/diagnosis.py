"""The figures about variance: a diagnosis's ranking, the validation of its advice, variance along training runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discover.report.plotting import save_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["write_diagnosis_figure", "write_validation_figure"]

_IN, _BETWEEN, _INK = "#9fb7c9", "#D55E00", "#22252b"


def write_diagnosis_figure(
    json_file: str | Path, directory: str | Path, formats: Sequence[str] = ("png", "svg")
) -> list[Path]:
    """Draws `diagnosis`: what share of the noise lies between clusters, for every clustering, as batches are drawn.

    Args:
      json_file: what `discover diagnose` wrote.
      directory: where it goes.
      formats: any that matplotlib can write.
    """
    record = json.loads(Path(json_file).read_text())
    with styled():
        return save_figure(_ranking(record), Path(directory), "diagnosis", formats)


def _ranking(record: dict[str, Any]) -> Figure:
    import matplotlib.pyplot as plt

    rows = record["clusterings"][::-1]
    first, last = record["stages"][0], record["stages"][-1]
    figure, axes = plt.subplots(1, 2, figsize=(10.5, 1.3 + 0.32 * len(rows)), sharey=True, layout="constrained")
    titles = (f"{record['groups']} cluster-pure groups of {record['group_size']}", "shuffled batches of the same size")
    for panel, key, title in zip(axes, ("batch_share", "shuffled_share"), titles):
        for place, row in enumerate(rows):
            share = row["stages"][last][key]
            panel.barh(place, share, color=_BETWEEN, hatch="//", edgecolor="white", linewidth=0)
            panel.barh(place, 1 - share, left=share, color=_IN)
            panel.plot(row["stages"][first][key], place, marker="d", color=_INK, markersize=5, linestyle="")
            panel.text(1.01, place, f"{share:.0%}", va="center", fontsize=8)
        panel.set_xlim(0, 1)
        panel.set_xlabel("share of the gradient noise of a batch")
        panel.set_title(title)
        panel.grid(visible=False)
    axes[0].set_yticks(range(len(rows)), [f"{row['name']} (N = {row['num_clusters']})" for row in rows], fontsize=8)
    handles = [
        plt.Rectangle((0, 0), 1, 1, color=_BETWEEN, hatch="//"),
        plt.Rectangle((0, 0), 1, 1, color=_IN),
        *axes[0].plot([], [], marker="d", color=_INK, linestyle=""),
    ]
    words = [f"between clusters ({last})", f"within clusters ({last})", f"between clusters ({first})"]
    figure.legend(handles, words, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def write_validation_figure(
    records: dict[str, dict[str, Any]], directory: str | Path, formats: Sequence[str] = ("png", "svg")
) -> list[Path]:
    """Draws `advice-validation`: predicted against measured gain, one point per setting, one panel per data set.

    Args:
      records: by data set, what `discover.experiments.validate_advice.validate` returned.
      directory: where it goes.
      formats: any that matplotlib can write.
    """
    import matplotlib.pyplot as plt

    markers = {1: "o", 2: "s", 4: "^", 8: "D"}
    colours = {"classes": "#D55E00", "kmeans": "#0072B2", "random": "#767676"}
    with styled():
        figure, panels = plt.subplots(
            1, len(records), figsize=(5.2 * len(records), 4.4), squeeze=False, layout="constrained"
        )
        for axes, (name, record) in zip(panels[0], records.items()):
            for row in record["rows"]:
                axes.plot(
                    row["predicted"], row["measured"], marker=markers.get(row["groups"], "P"), linestyle="",
                    color=colours.get(row["clustering"], _INK), markersize=7,
                    fillstyle="none" if row["label_noise"] else "full",
                    markeredgewidth=1.4, alpha=0.9,
                )  # fmt: skip
            axes.axhline(1.0, color="#9aa1ab", linewidth=1)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xlabel("predicted gain")
            axes.set_ylabel("measured gain: Momentum's steps / Discover's")
            low, high = record["rank_correlation_low"], record["rank_correlation_high"]
            axes.set_title(
                f"{name}: rank correlation {record['rank_correlation']:.2f} [{low:.2f}, {high:.2f}]", fontsize=10
            )
        for label, colour in colours.items():
            panels[0][0].plot([], [], "o", color=colour, label=label)
        for groups, marker in markers.items():
            panels[0][0].plot([], [], marker, color=_INK, label=f"G = {groups}", fillstyle="none")
        panels[0][0].plot([], [], "o", color=_INK, fillstyle="none", label="label noise: open")
        panels[0][0].legend(frameon=False, fontsize=7.5, ncols=2)
        return save_figure(figure, Path(directory), "advice-validation", formats)
