"""The figure of a diagnosis: clusterings ranked by the share of the noise that lies between their clusters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discover.lab.report.plotting import save_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_IN, _BETWEEN, _INK = "#9fb7c9", "#D55E00", "#22252b"


def write_diagnosis_figure(json_file: Path, directory: Path) -> list[Path]:
    """Draws `diagnosis`: what share of the noise lies between clusters, for every clustering, as batches are drawn."""
    record = json.loads(json_file.read_text())
    with styled():
        return save_figure(_ranking(record), directory, "diagnosis")


def _ranking(record: dict[str, Any]) -> Figure:
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

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
            interval = row["stages"][last].get("batch" if key == "batch_share" else "shuffled")
            if interval is not None:
                ends = interval["between_share"]
                panel.plot([ends["low"], ends["high"]], [place, place], color=_INK, linewidth=1.1, marker="|")
            panel.text(1.01, place, f"{share:.0%}", va="center", fontsize=8)
        panel.set_xlim(0, 1)
        panel.set_xlabel("share of the gradient noise of a batch")
        panel.set_title(title)
        panel.grid(visible=False)
    axes[0].set_yticks(range(len(rows)), [f"{row['name']} (N = {row['num_clusters']})" for row in rows], fontsize=8)
    handles = [
        Rectangle((0, 0), 1, 1, color=_BETWEEN, hatch="//"),
        Rectangle((0, 0), 1, 1, color=_IN),
        *axes[0].plot([], [], marker="d", color=_INK, linestyle=""),
    ]
    words = [f"between clusters ({last})", f"within clusters ({last})", f"between clusters ({first})"]
    known = f"{record['parameters']:,} parameters, gradients of {record['sample']:,} of {record['examples']:,} examples"
    note = f"{record['data']}, {record['model']} of {known}; whiskers: bootstrap 95% intervals ({last})"
    figure.legend(
        handles, words, loc="outside lower center", ncols=3, frameon=False, fontsize=8, title=note, title_fontsize=7.5
    )
    return figure
