"""Figures of the advice's validation: expected against measured gain, one point for every setting."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discover.lab.report.plotting import INK, save_figure, styled
from discover.registry import OPTIMIZERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = {1: "o", 2: "s", 4: "^", 8: "D"}
_COLOURS = {"classes": "#D55E00", "kmeans": "#0072B2", "random": "#767676", "augmentations": "#009E73"}
_NAMES = {"kmeans": "k-means on pixels"}
_TICKS = (0.25, 0.5, 0.7, 1, 1.5, 2, 3, 5, 8, 12, 20)


def write_validation_figure(records: Mapping[str, dict[str, Any]], directory: Path) -> list[Path]:
    """Draws `advice-validation`: expected against measured gain, one point per setting, one panel per data set.

    Vertical lines are bootstrap 95% intervals over the seeds. An arrow marks a gain that is only a lower bound, since
    the baseline did not reach the target with every seed; a downward one an upper bound, since Discover did not.
    """
    import matplotlib.pyplot as plt

    with styled():
        wide = 5.6 * len(records)
        figure, panels = plt.subplots(1, len(records), figsize=(wide, 5.0), squeeze=False, layout="constrained")
        for axes, (name, record) in zip(panels[0], records.items()):
            _panel(axes, name, record)
        drawn = {row["clustering"] for record in records.values() for row in record["rows"]}
        for label in (label for label in _COLOURS if label in drawn):
            panels[0][0].plot([], [], "o", color=_COLOURS[label], label=_NAMES.get(label, label))
        for groups, marker in _MARKERS.items():
            panels[0][0].plot([], [], marker, color=INK, linestyle="", label=f"G = {groups}")
        panels[0][0].plot([], [], "o", color=INK, fillstyle="none", label="with label noise")
        figure.legend(loc="outside lower center", frameon=False, fontsize=8, ncols=5)
        return save_figure(figure, directory, "advice-validation")


def _panel(axes: Axes, name: str, record: dict[str, Any]) -> None:
    rows, seeds = record["rows"], len(record["plan"]["seeds"])
    for row in rows:
        colour, x, y = _COLOURS.get(row["clustering"], INK), row["predicted"], row["measured"]
        axes.plot([x, x], [row["measured_low"], row["measured_high"]], color=colour, linewidth=1.0, alpha=0.6)
        axes.plot(
            x, y, marker=_MARKERS.get(row["groups"], "P"), linestyle="", color=colour, markersize=7,
            fillstyle="none" if row["label_noise"] else "full", markeredgewidth=1.4, alpha=0.9,
        )  # fmt: skip
        for reached, factor in ((row["plain_reached"], 1.14), (row["discover_reached"], 1 / 1.14)):
            if reached < seeds:
                arrow = {"arrowstyle": "->", "color": INK}
                axes.annotate("", (x, y * factor), (x, y), arrowprops=arrow)
    axes.set_xscale("log")
    axes.set_yscale("log")
    values = [row[key] for row in rows for key in ("predicted", "measured", "measured_low", "measured_high")]
    least, most = 0.93 * min(values), 1.18 * max(values)
    axes.plot([least, most], [least, most], color="#9aa1ab", linewidth=1, zorder=0)
    ticks = [tick for tick in _TICKS if least <= tick <= most]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("expected gain")
    axes.set_ylabel("measured gain: one momentum's steps / Discover's")
    low, high = record["rank_correlation_low"], record["rank_correlation_high"]
    axes.set_title(f"{name}: rank correlation {record['rank_correlation']:.2f} [{low:.2f}, {high:.2f}]", fontsize=10)
    shape = "×".join(str(n) for n in record["example_shape"])
    note = f"n = {len(rows)} settings, {seeds} seeds each; {record['examples']:,} examples {shape}, "
    note += f"{record['model']['name']}; {record['device'].upper()}, jax {record['jax']}"
    axes.text(0.0, -0.13, note, transform=axes.transAxes, fontsize=7.5, color="#5b6270", va="top")


def write_gains_figure(record: dict[str, Any], directory: Path) -> list[Path]:
    """Draws `gains`: expected against measured gain in every setting of our results, each over its own baseline."""
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(row["data"] for row in record["rows"]))
    markers = dict(zip(names, "osD^vP*X"))
    with styled():
        figure, axes = plt.subplots(figsize=(6.6, 5.2), layout="constrained")
        for row in record["rows"]:
            entry, x = OPTIMIZERS[row["optimizer"]], row["predicted"]
            axes.plot([x, x], [row["measured_low"], row["measured_high"]], color=entry.color, linewidth=1.0, alpha=0.6)
            axes.plot(
                x, row["measured"], marker=markers.get(row["data"], "."), linestyle="", color=entry.color, markersize=7,
                fillstyle="none" if row["composition"] == "balanced" else "full", markeredgewidth=1.4, alpha=0.9,
            )  # fmt: skip
        axes.axhline(1.0, color="#9aa1ab", linewidth=1, zorder=0)
        axes.axvline(1.0, color="#9aa1ab", linewidth=1, zorder=0)
        axes.set_xscale("log")
        axes.set_yscale("log")
        for ticks, limits in ((axes.set_xticks, axes.get_xlim()), (axes.set_yticks, axes.get_ylim())):
            shown = [tick for tick in _TICKS if limits[0] <= tick <= limits[1]]
            ticks(shown, [f"{tick:g}" for tick in shown])
        axes.minorticks_off()
        for name, own in record["families"].items():
            entry = OPTIMIZERS[name]
            label = f"{entry.label} over {OPTIMIZERS[entry.baseline or ''].label}: {_correlation(own)}"
            axes.plot([], [], "o", color=entry.color, label=label)
        for name, marker in markers.items():
            axes.plot([], [], marker, color=INK, linestyle="", label=name)
        axes.plot([], [], "o", color=INK, fillstyle="none", linestyle="", label="clusters in turn")
        axes.set_xlabel("expected gain: times fewer steps than with one momentum for all")
        axes.set_ylabel("measured gain: odds to be right, over the baseline's")
        axes.set_title(f"All {len(record['rows'])} comparisons: {_correlation(record)}", fontsize=10)
        figure.legend(loc="outside lower center", frameon=False, fontsize=8, ncols=2)
        return save_figure(figure, directory, "gains")


def _correlation(found: dict[str, Any]) -> str:
    """The rank correlation with its interval; nothing to tell where there is none."""
    ends = [found.get(f"rank_correlation{end}") for end in ("", "_low", "_high")]
    if any(end is None for end in ends):
        return "too few for a rank correlation"
    return f"rank correlation {ends[0]:.2f} [{ends[1]:.2f}, {ends[2]:.2f}]"
