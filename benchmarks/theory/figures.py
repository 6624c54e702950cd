"""The figures of `docs/theory.md`, from the `theory.json` that `evidence` wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discover.lab.records import read_json
from discover.lab.report.plotting import save_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The style of each optimizer's curve: colour, line, marker; as everywhere in the report, and apart in grey too.
_LOOK: dict[str, tuple[str, str, str, str]] = {
    "sgd": ("SGD", "#767676", "-.", "D"),
    "momentum": ("Momentum", "#0072B2", "--", "o"),
    "paper_discover": ("Discover as printed", "#8A3D00", ":", "s"),
    "discover": ("Discover, ν = 0 (the theorem's)", "#D55E00", "-", "o"),
    "multi_momentum": ("Discover, ν = 1", "#A6478A", "-", "^"),
}


_PAIR = (("discover", "o"), ("paper_discover", "s"))
_ERROR = r"$E\|\theta - \theta^*\|^2$"


def write_theory_figures(json_file: Path, directory: Path) -> list[Path]:
    """Draws `theory-bound`, `theory-steady-state` and `theory-groups`; returns the files."""
    record = read_json(json_file)
    made: dict[str, Callable[[dict[str, Any]], Figure]] = {
        "theory-bound": _bound,
        "theory-steady-state": _steady_state,
        "theory-groups": _groups,
    }
    written = []
    for name, draw in made.items():
        with styled():
            written += save_figure(draw(record), directory, name)
    return written


def _curve(axes: Axes, name: str, x: list[float], y: list[float], markers: bool = True) -> None:
    label, colour, line, marker = _LOOK[name]
    axes.plot(x, y, color=colour, linestyle=line, marker=marker if markers else None, markersize=4, label=label)


def _note(figure: Figure, record: dict[str, Any], extra: str) -> None:
    s = record["settings"]
    text = (
        f"{extra}; {s['num_clusters']} clusters, d = {s['dim']}, α = {s['alpha']:g}, in-cluster variance "
        f"{s['in_cluster_variance']:g}; mean over {s['seeds']} seeds; {s['device']}, jax {s['jax']}"
    )
    figure.text(0.005, -0.02, text, fontsize=7.5, color="#5b6270", va="top")


def _bound(record: dict[str, Any]) -> Figure:
    """Curves over time under the bound, and the largest ratio for every random problem."""
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.0), layout="constrained")
    shown = record["trajectory"]
    left.plot(shown["step"], shown["bound"], color="black", linewidth=2.2, label="Theorem 1's bound")
    for name in _LOOK:
        _curve(left, name, shown["step"], shown[name], markers=False)
    left.set_yscale("log")
    left.set_xlabel("step")
    left.set_ylabel(_ERROR)
    left.set_title("One problem, step size at the theorem's limit")
    left.set_ylim(top=1e4)  # room for the legend
    left.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")

    names, data, colours = [], [], []
    for row in record["bound"]["rows"]:
        for name in ("discover", "paper_discover"):
            names.append(f"{row['kind'][:5]}. {row['num_groups']}×{row['group_size']}")
            data.append(row[name]["last_ratio"])
            colours.append(_LOOK[name][1])
    for place, (values, colour) in enumerate(zip(data, colours)):
        spread = [place + 0.5 * (i / max(1, len(values) - 1) - 0.5) for i in range(len(values))]
        marker = "o" if colour == _LOOK["discover"][1] else "s"
        right.scatter(spread, values, s=9, color=colour, marker=marker, alpha=0.75, linewidths=0)
    right.axhline(1.0, color="black", linewidth=2.2)
    right.set_yscale("log")
    right.set_xticks([2 * i + 0.5 for i in range(len(names) // 2)], names[::2], fontsize=8)
    right.set_ylabel("measured / bound, last quarter of the steps")
    total = sum(row["problems"] for row in record["bound"]["rows"])
    kept = total - sum(row["discover"]["violations"] for row in record["bound"]["rows"])
    right.set_title(f"{total} random problems: it holds in {kept}")
    right.set_xlabel("problem, groups × examples per group")
    handles = [Line2D([], [], color=_LOOK[n][1], marker=m, linestyle="") for n, m in _PAIR]
    right.legend(handles, [_LOOK[n][0] for n, _ in _PAIR], frameon=False, fontsize=8)
    some = record["bound"]["rows"][0]
    right_hand = f"right: {some['problems']} problems a setting, {some['steps']} steps, mean over {some['seeds']} seeds"
    _note(figure, record, f"{right_hand}; left: |B| = 8 independent examples")
    return figure


def _steady_state(record: dict[str, Any]) -> Figure:
    """By between-cluster variance, by step size over the limit, and by μ/|B|."""
    import matplotlib.pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13.0, 4.0), layout="constrained")
    shown = record["between"]
    left.plot(shown["variance"], shown["bound"], color="black", linewidth=2.2, label="Theorem 1's bound")
    for name in _LOOK:
        _curve(left, name, shown["variance"], shown[name])
    left.set_xlabel("between-cluster variance")
    left.set_title("100 times the variance between clusters")
    left.legend(frameon=False, fontsize=8)

    shown = record["step_size"]
    middle.plot(shown["multiple"], shown["bound"], color="black", linewidth=2.2)
    for name in _LOOK:
        finite = [x for x, y in enumerate(shown[name]) if y is not None and y < 1e6]  # what diverged is left out
        _curve(middle, name, [shown["multiple"][i] for i in finite], [shown[name][i] for i in finite])
    middle.axvspan(1.0, max(shown["multiple"]), color="#f1efe9", zorder=0)
    middle.text(1.2, 0.02, "outside the theorem", fontsize=8, color="#5b6270", transform=middle.get_xaxis_transform())
    middle.set_xlabel("step size / the theorem's limit")
    middle.set_title("Inside and outside the step sizes")

    for row, marker in zip(record["scaling"]["rows"], "os^"):
        x = [mu / row["batch_size"] for mu in row["step_size"]]
        right.plot(
            x, row["discover"], color=_LOOK["discover"][1], marker=marker, markersize=5, linestyle="",
            label=f"Discover, |B| = {row['batch_size']}",
        )  # fmt: skip
        right.plot(
            x, row["sgd"], color=_LOOK["sgd"][1], marker=marker, markersize=5, linestyle="", fillstyle="none",
            label=f"SGD, |B| = {row['batch_size']}",
        )  # fmt: skip
    right.set_xlabel("step size / batch size")
    right.set_title("Proportional to μσ²/|B|")
    right.legend(frameon=False, fontsize=8)
    for axes in (left, middle, right):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylabel(f"steady state of {_ERROR}")
    _note(figure, record, "independent examples, |B| = 8 left and middle")
    return figure


def _groups(record: dict[str, Any]) -> Figure:
    """One batch size, cut into G cluster-pure groups."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.2, 4.0), layout="constrained")
    rows = record["groups"]["rows"]
    groups = [row["groups"] for row in rows]
    axes.plot(groups, [row["bound"] for row in rows], color="black", linewidth=2.2, label="Theorem 1 for groups")
    for name in _LOOK:
        _curve(axes, name, groups, [row[name] for row in rows])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(groups, [str(g) for g in groups])
    axes.set_xlabel(f"cluster-pure groups in a batch of {record['groups']['batch_size']}")
    axes.set_ylabel(f"steady state of {_ERROR}")
    axes.set_title("Pure batches hurt SGD and Momentum, not Discover")
    axes.legend(frameon=False, fontsize=8)
    _note(figure, record, f"step size {record['groups']['step_size']:.3g}")
    return figure
