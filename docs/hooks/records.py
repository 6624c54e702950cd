"""What the pages say of the records in `docs/results` and `docs/figures`: numbers and tables, as text.

A function of `NUMBERS` makes one number, a function of `TABLES` a whole table. Their arguments are the words that stand
in a page's note (`fill_in.py`): the name of a record, then a row of it.
"""

import functools
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from discover.registry import OPTIMIZERS

DOCS = Path(__file__).parent.parent
VARIANTS = {"shuffled": "shuffled batches", "balanced": "classes in turn", "random": "classes at random"}
SIDES = {"kmeans": "k-means"}
FACETS = {"groups": "groups", "clusters": "clusters", "setting": "setting", "beta": "β", "nu": "ν"}


class NoRecord(LookupError):
    """A note names a record or a row that is not there."""


@functools.cache
def load(name: str) -> dict[str, Any]:
    """The record `docs/results/NAME.json`, or the one in `docs/figures`."""
    for folder in ("results", "figures"):
        path = DOCS / folder / f"{name}.json"
        if path.exists():
            return json.loads(path.read_text())
    raise NoRecord(f"there is no docs/results/{name}.json, nor docs/figures/{name}.json")


def find(rows: Iterable[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    """The one row that has these values."""
    rows = list(rows)
    found = [row for row in rows if all(str(row.get(key)) == str(value) for key, value in wanted.items())]
    if len(found) != 1:
        known = "; ".join(str({key: row.get(key) for key in wanted}) for row in rows)
        raise NoRecord(f"{len(found)} rows with {wanted}; there are {known}")
    return found[0]


def row(record: str, label: str) -> dict[str, Any]:
    return find(load(record)["rows"], label=label)


def percent(spread: Mapping[str, Any]) -> str:
    """Mean ± standard deviation in percent; of one seed, its value."""
    text = f"{100 * spread['mean']:.1f}"
    return f"{text} ± {100 * spread['std']:.1f}" if len(spread["values"]) > 1 else text


# Numbers


def accuracy(record: str, label: str) -> str:
    """Test accuracy in percent, mean ± standard deviation."""
    return percent(row(record, label)["test_accuracy"])


def mean(record: str, label: str) -> str:
    """Its mean alone."""
    return f"{_mean(record, label):.1f}"


def gap(record: str, label: str, other: str, other_record: str = "") -> str:
    """By how many points a row is above another, or below."""
    return f"{abs(_mean(record, label) - _mean(other_record or record, other)):.1f}"


def won_back(record: str, loser: str, winner: str, reference: str, reference_record: str = "") -> str:
    """The share, in percent, of the loser's distance to the reference that the winner covers."""
    top, bottom = _mean(reference_record or record, reference), _mean(record, loser)
    return f"{100 * (_mean(record, winner) - bottom) / (top - bottom):.0f}"


def rate(record: str, label: str) -> str:
    """The chosen learning rate."""
    return plain(row(record, label)["learning_rate"])


def drift(record: str, label: str, which: str) -> str:
    """The least, greatest or last distance of ḡ from the mean of the buffers along a run."""
    values = [line["drift"] for line in row(record, label)["lines"]]
    value = {"least": min(values), "greatest": max(values), "last": values[-1]}[which]
    return f"{value:.1f}" if value >= 0.1 else f"{value:.0e}"


def speed(record: str, optimizer: str, groups: str, clusters: str = "") -> str:
    """Steps a second, for each of momentum's."""
    return f"{_bench(record, optimizer, groups, clusters)['ratio']:.3f}"


def milliseconds(record: str, optimizer: str, groups: str, clusters: str = "") -> str:
    """The time of a step."""
    return f"{_bench(record, optimizer, groups, clusters)['milliseconds']:.2f}"


def megabytes(record: str, optimizer: str, groups: str, clusters: str = "") -> str:
    """What the optimizer keeps."""
    return f"{_bench(record, optimizer, groups, clusters)['state_bytes'] / 1e6:,.0f}"


def floor(record: str, optimizer: str, groups: str) -> str:
    """The update's time, in units of the time that its memory traffic needs."""
    return f"{find(load(record)['updates'], optimizer=optimizer, groups=groups)['times_floor']:.2f}"


def loss(name: str) -> str:
    """Held-out loss on the six kinds of text, mean ± standard deviation over the seeds that took no part in the choice."""
    values = [one["loss"] for one in load("text-domains")["best_seeds_1_to_5"] if one["name"] == name]
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"


def rank_correlation(record: str) -> str:
    """Of the gains that the advice expected and those that were measured (Spearman's)."""
    found = load(record)["rows"]
    return f"{statistics.correlation(*(_ranks([one[key] for one in found]) for key in ('predicted', 'measured'))):.2f}"


def _ranks(values: Sequence[float]) -> list[float]:
    return [sum(other < value for other in values) + sum(other == value for other in values) / 2 for value in values]


def _mean(record: str, label: str) -> float:
    return 100 * row(record, label)["test_accuracy"]["mean"]


def _bench(record: str, optimizer: str, groups: str, clusters: str = "") -> dict[str, Any]:
    wanted = {"optimizer": optimizer, "groups": groups} | ({"clusters": clusters} if clusters else {})
    return find(load(record)["rows"], **wanted)


# Tables


def rows(record: str, *only: str) -> str:
    """A line for each row: what was trained, at which learning rate, and the test accuracy; the best is bold."""
    chosen = [one for one in load(record)["rows"] if not only or one["label"] in only]
    ours = [one["test_accuracy"]["mean"] for one in chosen if one["batches"] != "shuffled"]
    lines = []
    for one in chosen:
        best = len(ours) > 2 and one["test_accuracy"]["mean"] == max(ours)
        edge = " (edge)" if one["at_grid_edge"] else ""
        lines.append(
            (bold(name(one["label"]), best), plain(one["learning_rate"]) + edge, bold(percent(one["test_accuracy"]), best))
        )
    return table(("optimizer", "learning rate", "test accuracy (%)"), lines, "-rr")


def comparison(record: str) -> str:
    """What `discover compare` prints of itself, without the speeds."""
    found = load(record)
    chosen = [one for one in found["rows"] if one["batches"] != "shuffled"]
    best = max(chosen, key=lambda one: one["validation_accuracy"]["mean"])
    lines = []
    for one in found["rows"]:
        error, steps = one["test_loss"], [at for at in one["steps_to_target"]["values"] if at is not None]
        seeds = len(one["steps_to_target"]["values"])
        reached = f"{statistics.mean(steps):.0f}" if steps else "not reached"
        reached += f" ({len(steps)}/{seeds} seeds)" if 0 < len(steps) < seeds else ""
        lines.append(
            (
                bold(name(one["label"]), one is best), one["batches"], plain(one["learning_rate"]),
                bold(percent(one["test_accuracy"]), one is best), f"{error['mean']:.3f} ± {error['std']:.3f}", reached,
            )
        )  # fmt: skip
    goal = f"steps to {100 * found['target_accuracy']:.0f} %"
    heads = ("optimizer", "batches", "learning rate", "test accuracy (%)", "test loss", goal)
    return table(heads, lines, "--rrrr")


def grid(record: str, down: str, across: str) -> str:
    """Test accuracies by two facets of the rows; a last line for shuffled batches where there are any."""
    found = load(record)["rows"]
    faceted = [one for one in found if {down, across} <= one["facets"].keys()]
    heads = list(dict.fromkeys(one["facets"][across] for one in faceted))
    sides = list(dict.fromkeys(one["facets"][down] for one in faceted))
    cells = {(one["facets"][down], one["facets"][across]): percent(one["test_accuracy"]) for one in faceted}
    lines = [(SIDES.get(side, str(side)), *(cells.get((side, head), "") for head in heads)) for side in sides]
    alone = [one for one in found if one["batches"] == "shuffled" and down not in one["facets"]]
    control = {one["facets"].get(across): percent(one["test_accuracy"]) for one in alone}
    if any(head in control for head in heads):
        lines.append(("(shuffled batches)", *(control.get(head, "") for head in heads)))
    titles = [name(head) if across == "optimizer" else f"{FACETS[across]} = {plain(head)}" for head in heads]
    return table((FACETS[down], *titles), lines, "-" + "r" * len(heads))


def speeds(record: str) -> str:
    """Steps a second of every optimizer, and for each of momentum's."""
    found = load(record)["rows"]
    several = len({one["clusters"] for one in found if one["optimizer"] != "optax loop"}) > 1
    lines = []
    for one in found:
        if one["optimizer"] == "momentum":
            lines.append(("Momentum", f"{one['steps_per_second']:.1f}", "1", ""))
            continue
        label = name(one["optimizer"]) + f", G = {one['groups']}" + (f", N = {one['clusters']:,}" if several else "")
        if one["optimizer"] == "optax loop":
            label = "`optax.sgd` in a hand-written loop"
        spread = f"{one['ratio_lowest']:.3f} to {one['ratio_highest']:.3f}"
        lines.append((label, f"{one['steps_per_second']:.1f}", f"{one['ratio']:.3f}", spread))
    return table(("", "steps a second", "of momentum's", "lowest to highest"), lines, "-rrr")


def updates(record: str) -> str:
    """The update alone: its time, and how much of it memory traffic explains."""
    lines = []
    for one in load(record)["updates"]:
        label = name(one["optimizer"]) + ("" if one["optimizer"] == "momentum" else f", G = {one['groups']}")
        lines.append((label, f"{one['milliseconds']:.3f}", f"{one['times_floor']:.2f}"))
    return table(("the update alone", "ms", "times the floor"), lines, "-rr")


def gains(record: str) -> str:
    """What the advice expected in each setting, and what was measured."""
    lines = []
    for one in load(record)["rows"]:
        seeds = len(one["momentum_steps_by_seed"])
        late = seeds - one["momentum_reached"]
        limit = load(record)["plan"]["steps"]
        steps = f"{one['momentum_steps']:.0f}" + (f" ({late} of {seeds} not in {limit})" if late else "")
        found = f"{one['measured']:.2f} ({one['measured_low']:.2f}–{one['measured_high']:.2f})"
        clusters = "k-means on pixels" if one["clustering"] == "kmeans" else one["clustering"]
        lines.append(
            (
                clusters, f"{one['label_noise']:g}", str(one["groups"]), f"{one['predicted']:.2f}",
                ("at least " if one["censored"] else "") + found, steps, f"{one['discover_steps']:.0f}",
            )
        )  # fmt: skip
    heads = ("clusters", "label noise", "G", "expected", "measured (95%)", "Momentum's steps", "Discover's steps")
    return table(heads, lines, "-------")


def steady_states(record: str) -> str:
    """The error at the end, for the least and the greatest variance between clusters."""
    found = load(record)["between"]
    names = {
        "sgd": "SGD", "momentum": "Momentum, β = 0.9", "discover": "Discover, ν = 0", "multi_momentum": "Discover, ν = 1",
        "paper_discover": "Discover as printed, after 3000 steps", "bound": "bound",
    }  # fmt: skip
    heads = ("", *(f"$V_{{bet}} = {found['variance'][at]:g}$" for at in (0, -1)))
    return table(heads, [(title, *(short(found[key][at]) for at in (0, -1))) for key, title in names.items()], "---")


# Texts


def table(heads: Sequence[str], lines: Iterable[Sequence[str]], align: str) -> str:
    marks = ["---:" if one == "r" else "---" for one in align]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, marks, *lines))


def bold(text: str, really: bool) -> str:
    return f"**{text}**" if really else text


def name(label: str) -> str:
    """What a row is called.

    >>> name("discover_qhm-mapped"), name("discover-beta=0.95 nu=0.9")
    ('Discover-QHM, mapped', 'Discover, β = 0.95, ν = 0.9')
    """
    optimizer, _, variant = label.partition("-")
    title = OPTIMIZERS[optimizer].label if optimizer in OPTIMIZERS else optimizer
    words = [word.replace("beta1=", "β₁ = ").replace("beta=", "β = ").replace("nu=", "ν = ") for word in variant.split(" ")]
    variant = VARIANTS.get(variant, (", " if "=" in variant else " ").join(words))
    return f"{title}, {variant}" if variant else title


def plain(value: Any) -> str:
    """A number as one would write it: no exponent, no trailing zeros."""
    return f"{value:.10f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def short(value: float) -> str:
    """Three digits; small numbers with an exponent."""
    if value >= 1:
        return f"{value:.0f}"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa}e{int(exponent)}"


NUMBERS: dict[str, Callable[..., str]] = {
    one.__name__: one
    for one in (
        accuracy, mean, gap, won_back, rate, drift, speed, milliseconds, megabytes, floor, loss, rank_correlation,
    )
}  # fmt: skip
TABLES: dict[str, Callable[..., str]] = {
    one.__name__: one for one in (rows, comparison, grid, speeds, updates, gains, steady_states)
}
