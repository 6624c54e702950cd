"""The figures about variance: a diagnosis's ranking, the validation of its advice, variance along training runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discover.report.load import Report, RunRecord
from discover.report.plotting import save_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "variance_curve",
    "write_diagnosis_figure",
    "write_tracked_variance",
    "write_validation_figure",
    "write_variance_figure",
]

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
    figure.legend(handles, words, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def write_validation_figure(
    records: dict[str, dict[str, Any]], directory: str | Path, formats: Sequence[str] = ("png", "svg")
) -> list[Path]:
    """Draws `advice-validation`: predicted against measured gain, one point per setting, one panel per data set.

    An arrow marks a gain that is only a lower bound, since the slower optimizer did not reach the target.

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
            for row in record["rows"]:
                if row["censored"]:  # the target was not reached within the steps: the gain is at least this
                    axes.annotate(
                        "", (row["predicted"], row["measured"] * 1.13), (row["predicted"], row["measured"]),
                        arrowprops={"arrowstyle": "->", "color": _INK},
                    )  # fmt: skip
            axes.set_xscale("log")
            axes.set_yscale("log")
            most = 1.1 * max(max(row["predicted"], row["measured"]) for row in record["rows"])
            least = 0.9 * min(min(row["predicted"], row["measured"]) for row in record["rows"])
            axes.plot([least, most], [least, most], color="#9aa1ab", linewidth=1, zorder=0)
            ticks = [tick for tick in (0.25, 0.5, 1, 1.5, 2, 3, 5, 8, 12) if least <= tick <= most]
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.minorticks_off()
            axes.set_xlabel("expected gain")
            axes.set_ylabel("measured gain: Momentum's steps / Discover's")
            low, high = record["rank_correlation_low"], record["rank_correlation_high"]
            axes.set_title(
                f"{name}: rank correlation {record['rank_correlation']:.2f} [{low:.2f}, {high:.2f}]", fontsize=10
            )
        for label, colour in colours.items():
            panels[0][0].plot([], [], "o", color=colour, label=label)
        for groups, marker in markers.items():
            panels[0][0].plot([], [], marker, color=_INK, label=f"G = {groups}")
        panels[0][0].plot([], [], "o", color=_INK, fillstyle="none", label="with label noise")
        panels[0][0].legend(frameon=False, fontsize=7.5, ncols=2)
        return save_figure(figure, Path(directory), "advice-validation", formats)


def variance_curve(
    run: str | Path | RunRecord, field: str = "between_paper", window: int = 100
) -> tuple[list[float], list[float], list[float]]:
    """A run's tracked variance as means per `window` steps: steps (the windows' ends), means and deviations over seeds.

    Args:
      run: a run that had `training.track_variance`, as read, or its directory.
      field: which number of the lines.
      window: steps averaged over, as in the paper's figure.

    Raises:
      ValueError: the run has no such lines.
    """
    from statistics import fmean, pstdev

    from discover.records import read_metrics

    sums: dict[int, dict[Any, list[float]]] = {}
    name, metrics = (run.label, run.metrics) if isinstance(run, RunRecord) else (run, read_metrics(Path(run)))
    for line in metrics:
        if line.get("kind") == "variance" and line.get(field) is not None:  # a diverged member has none
            end = -(-line["step"] // window) * window
            member = line.get("member", line["seed"])
            sums.setdefault(end, {}).setdefault(member, []).append(line[field])
    if not sums:
        raise ValueError(f"the run {name} has no {field}: train it with --track-variance every=100")
    steps = sorted(sums)
    means = [[fmean(values) for values in sums[step].values()] for step in steps]
    return [float(s) for s in steps], [fmean(m) for m in means], [pstdev(m) for m in means]


def write_variance_figure(
    runs: dict[str, dict[str, str | Path | RunRecord]],
    directory: str | Path,
    *,
    window: int = 100,
    formats: Sequence[str] = ("png", "svg"),
) -> list[Path]:
    """Draws `variance`: the between-cluster variance along training, the paper's estimate above, as drawn below.

    Args:
      runs: by setting ("clean labels", "label noise 0.8") and optimizer, the runs or their directories.
      directory: where it goes.
      window: steps per mean.
      formats: any that matplotlib can write.
    """
    import matplotlib.pyplot as plt

    from discover.report.style import series_styles

    fields = {"between_paper": "the paper's estimate", "between_drawn": "batches as drawn"}
    with styled():
        figure, grid = plt.subplots(
            len(fields), len(runs), figsize=(5.2 * len(runs), 6.0), squeeze=False, sharex="col", layout="constrained"
        )
        for column, (setting, members) in enumerate(runs.items()):
            styles = series_styles(list(members))
            for row, (field, words) in enumerate(fields.items()):
                axes = grid[row][column]
                for name, run in members.items():
                    try:
                        steps, means, spread = variance_curve(run, field, window)
                    except ValueError:  # balanced and given batches have no "as drawn"
                        if field == "between_drawn":
                            continue
                        raise
                    style = styles[name]
                    shown = [max(m, 1e-4) for m in means]  # an unbiased estimate of nothing can be below zero
                    axes.plot(
                        steps, shown, color=style.color, dashes=style.dash or (1, 0), marker=style.marker,
                        fillstyle="full" if style.filled else "none", markersize=4, label=style.name,
                    )  # fmt: skip
                    low = [max(m - s, 1e-4) for m, s in zip(means, spread)]
                    high = [max(m + s, 1e-4) for m, s in zip(means, spread)]
                    axes.fill_between(steps, low, high, color=style.color, alpha=0.15, linewidth=0)
                axes.set_yscale("log")
                axes.set_title(f"{setting}: {words}", fontsize=10)
                if column == 0:
                    axes.set_ylabel("between-cluster variance")
            grid[-1][column].set_xlabel(f"step (means per {window})")
        grid[0][0].legend(frameon=False, fontsize=8)
        return save_figure(figure, Path(directory), "variance", formats)


def write_tracked_variance(
    report: Report, directory: str | Path, formats: Sequence[str] = ("png", "svg")
) -> list[Path]:
    """Draws `variance` for those runs of a report that tracked it (`--track-variance`); nothing where none did.

    Args:
      report: what `discover.report.load_report` read.
      directory: where it goes.
      formats: any that matplotlib can write.
    """
    steps = {
        run.label: [
            int(line["step"])
            for line in run.metrics
            if line.get("kind") == "variance" and line.get("between_paper") is not None
        ]
        for run in report.runs
    }
    runs: dict[str, str | Path | RunRecord] = {run.label: run for run in report.runs if steps[run.label]}
    if not runs:
        return []
    every, last = (
        min(min(found) for found in steps.values() if found),
        max(max(found, default=0) for found in steps.values()),
    )
    window = every * max(1, -(-last // (20 * every)))  # about 20 points, whole intervals each
    return write_variance_figure({report.title: runs}, directory, window=window, formats=formats)
