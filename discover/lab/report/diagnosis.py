"""The figure of a diagnosis: clusterings ranked by the share of the noise that lies between their clusters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from discover.lab.records import read_json
from discover.lab.report.plotting import INK, save_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_IN, _BETWEEN = "#9fb7c9", "#D55E00"


def write_diagnosis_figure(json_file: Path, directory: Path) -> list[Path]:
    """Draws `diagnosis`, clusterings by the share of the noise between their clusters, and `layers`, where it lies."""
    record = read_json(json_file)
    with styled():
        files = save_figure(_ranking(record), directory, "diagnosis")
        return files + (save_figure(_layers(record), directory, "layers") if record.get("layers") else [])


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
            panel.plot(row["stages"][first][key], place, marker="d", color=INK, markersize=5, linestyle="")
            interval = row["stages"][last].get("batch" if key == "batch_share" else "shuffled")
            if interval is not None:
                ends = interval["between_share"]
                panel.plot([ends["low"], ends["high"]], [place, place], color=INK, linewidth=1.1, marker="|")
            panel.text(1.01, place, f"{share:.0%}", va="center", fontsize=8)
        panel.set_xlim(0, 1)
        panel.set_xlabel("share of the gradient noise of a batch")
        panel.set_title(title)
        panel.grid(visible=False)
    axes[0].set_yticks(range(len(rows)), [f"{row['name']} (N = {row['num_clusters']})" for row in rows], fontsize=8)
    handles = [
        Rectangle((0, 0), 1, 1, color=_BETWEEN, hatch="//"),
        Rectangle((0, 0), 1, 1, color=_IN),
        *axes[0].plot([], [], marker="d", color=INK, linestyle=""),
    ]
    words = [f"between clusters ({last})", f"within clusters ({last})", f"between clusters ({first})"]
    known = f"{record['parameters']:,} parameters, gradients of {record['sample']:,} of {record['examples']:,} examples"
    note = f"{record['data']}, {record['model']} of {known}; whiskers: bootstrap 95% intervals ({last})"
    figure.legend(
        handles, words, loc="outside lower center", ncols=3, frameon=False, fontsize=8, title=note, title_fontsize=7.5
    )
    return figure


def _layers(record: dict[str, Any]) -> Figure:
    """The share of each layer's noise between clusters, and how much of all of it so many buffers hold."""
    import matplotlib.pyplot as plt

    best = record["layers"]["rows"]
    rows = sorted(best, key=lambda row: -row["place"])
    height = max(3.2, 1.3 + 0.2 * len(rows))
    figure, (bars, curve) = plt.subplots(1, 2, figsize=(10.5, height), layout="constrained")
    shares = [row["between_share"] for row in rows]
    bars.barh(range(len(rows)), shares, color=_BETWEEN, hatch="//", edgecolor="white", linewidth=0)
    bars.barh(range(len(rows)), [1 - share for share in shares], left=shares, color=_IN)
    bars.set_yticks(range(len(rows)), [f"{row['name']} ({row['parameters']:,})" for row in rows], fontsize=7)
    bars.set_xlim(0, 1)
    bars.set_xlabel("share of the layer's gradient noise between clusters")
    bars.set_title(f"each layer, {record['groups']} pure groups of {record['group_size']}")
    bars.grid(visible=False)
    points = [(0.0, 0.0), *((row["buffers"], row["held"]) for row in best)]
    curve.plot(*zip(*points), color=_BETWEEN, marker="o", markersize=3)
    curve.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=":")
    curve.set_xlabel("share of the buffers, best layers first")
    curve.set_ylabel("share of the noise between clusters")
    curve.set_title("what some of the buffers hold")
    curve.set_ylim(0, 1.03)
    figure.suptitle(f"{record['data']}, {record['model']}, {record['layers']['clusters']} as clusters", fontsize=10)
    return figure
