"""Tables of the pages, made from records. The arguments are the words of a note: a record, then what is wanted."""

import statistics
from collections.abc import Callable, Iterable, Sequence

from records import load, name, nats, percent, plain

from discover.registry import OPTIMIZERS

SIDES = {"kmeans": "k-means"}
FACETS = {"groups": "groups", "clusters": "clusters", "setting": "setting", "beta": "β", "nu": "ν"}
STEADY = {
    "sgd": "SGD",
    "momentum": "Momentum, β = 0.9",
    "discover": "Discover, ν = 0",
    "multi_momentum": "Discover, ν = 1",
    "paper_discover": "Discover as printed, after 3000 steps",
    "bound": "bound",
}


def rows(record: str, *only: str) -> str:
    """A line for each row: what was trained, at which learning rate, and what it reached; the best is bold.

    That is the test accuracy, and before it the loss where learning rates were chosen by it.
    """
    chosen = [one for one in load(record)["rows"] if not only or one["label"] in only]
    by_loss = load(record).get("measure") == "loss"
    scores = [-one["test_loss"]["mean"] if by_loss else one["test_accuracy"]["mean"] for one in chosen]
    ours = [score for one, score in zip(chosen, scores) if one["batches"] != "shuffled"]
    lines = []
    for one, score in zip(chosen, scores):
        best = len(ours) > 2 and score == max(ours)
        edge = " (edge)" if one["at_grid_edge"] else ""
        cells = [bold(nats(one["test_loss"]), best)] if by_loss else []
        cells.append(bold(percent(one["test_accuracy"]), best and not by_loss))
        lines.append((bold(name(one["label"]), best), plain(one["learning_rate"]) + edge, *cells))
    heads = ["test loss (nats)"] if by_loss else []
    return table(("optimizer", "learning rate", *heads, "test accuracy (%)"), lines, "-rr" + "r" * by_loss)


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
    if down == "groups":
        sides.sort()
    cells = {(one["facets"][down], one["facets"][across]): percent(one["test_accuracy"]) for one in faceted}
    lines = [(SIDES.get(side, str(side)), *(cells.get((side, head), "") for head in heads)) for side in sides]
    alone = [one for one in found if one["batches"] == "shuffled" and down not in one["facets"]]
    control = {one["facets"].get(across): percent(one["test_accuracy"]) for one in alone}
    if any(head in control for head in heads):
        lines.append(("(shuffled batches)", *(control.get(head, "") for head in heads)))
    titles = [name(head) if across == "optimizer" else f"{FACETS[across]} = {plain(head)}" for head in heads]
    return table((FACETS[down], *titles), lines, "-" + "r" * len(heads))


def contenders(*records: str) -> str:
    """A line for each optimizer of a tournament, a column for each setting; the best of a column is bold.

    The optimizers are in the order of the first column; one that a record lacks has an empty cell there.
    """
    found = [{one["label"]: one for one in load(record)["rows"]} for record in records]
    first = sorted(found[0].values(), key=lambda one: -one["test_accuracy"]["mean"])
    labels = dict.fromkeys([*(one["label"] for one in first), *(label for column in found for label in column)])
    best = [max(column.values(), key=lambda one: one["test_accuracy"]["mean"])["label"] for column in found]
    lines = []
    for label in labels:
        cells = [percent(column[label]["test_accuracy"]) if label in column else "" for column in found]
        lines.append((name(label), *(bold(cell, label == top) for cell, top in zip(cells, best))))
    heads = [load(record)["title"] for record in records]
    return table(("optimizer", *heads), lines, "-" + "r" * len(records))


def speeds(record: str) -> str:
    """Steps a second of every optimizer, and for each of momentum's."""
    found = load(record)["rows"]
    several = len({one["clusters"] for one in found if one["optimizer"] != "optax loop"}) > 1
    lines = []
    for one in found:
        if one is found[0]:  # what the others are measured against
            lines.append((name(one["optimizer"]), f"{one['steps_per_second']:.1f}", "1", ""))
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
        label = name(one["optimizer"]) + (f", G = {one['groups']}" if OPTIMIZERS[one["optimizer"]].clustered else "")
        lines.append((label, f"{one['milliseconds']:.3f}", f"{one['times_floor']:.2f}"))
    return table(("the update alone", "ms", "times the floor"), lines, "-rr")


def torch_speeds(record: str) -> str:
    """Milliseconds of a step in PyTorch, ours beside torch's own."""
    found = load(record)["torch"]
    kinds = [kind for kind in ("compiled", "eager") if kind in found]
    lines = []
    for theirs, ours in (("SGD", "Discover"), ("AdamW", "DiscoverAdamW"), ("Muon", "DiscoverMuon")):
        cells = []
        for kind in kinds:
            times, ratios = found[kind]["milliseconds"], found[kind]["steps per second, relative"]
            cells += [f"{times[theirs]:.1f}", f"{times[ours]:.1f}", f"{ratios[f'{ours} / {theirs}']:.3f}"]
        lines.append((f"`{ours}`, against `{theirs}`", *cells))
    heads = [f"{kind}: {what}" for kind in kinds for what in ("torch's ms", "ours", "ratio of steps")]
    return table(("", *heads), lines, "-" + "r" * len(heads))


def torch_agreement(record: str) -> str:
    """What the same training reached in JAX and in PyTorch, and whether the seeds could tell them apart."""
    lines = []
    for one in load(record)["rows"]:
        cells = [name(one["label"]), plain(one["learning_rate"])]
        for measure, written, scale, digits in (("accuracy", percent, 100, 1), ("loss", nats, 1, 3)):
            jax, torch = one[measure]["jax"], one[measure]["torch"]
            gap = round(scale * (torch["mean"] - jax["mean"]), digits) or 0.0  # not −0
            told = "told apart" if one[measure]["seeds_can_tell"] else "not told apart"
            cells += [written(jax), written(torch), f"{gap:+.{digits}f}, {told}".replace("-", "−")]
        pairs = zip(one["loss"]["jax"]["values"], one["loss"]["same start"]["values"], strict=True)
        lines.append((*cells, f"{max(abs(left - right) for left, right in pairs):.3f}"))
    heads = [f"{what}: {side}" for what in ("accuracy (%)", "loss (nats)") for side in ("JAX", "torch", "difference")]
    return table(("optimizer", "learning rate", *heads, "the same start: loss differs by"), lines, "-rrrrrrrr")


def gains(record: str) -> str:
    """What the advice expected in each setting, and what was measured."""
    lines, limit = [], load(record)["plan"]["steps"]
    for one in load(record)["rows"]:
        seeds = len(one["plain_steps_by_seed"])
        steps = []
        for who in ("momentum", "plain", "discover"):
            late = seeds - one[f"{who}_reached"]
            steps.append(f"{one[f'{who}_steps']:.0f}" + (f" ({late} of {seeds} not in {limit})" if late else ""))
        found = f"{one['measured']:.2f} ({one['measured_low']:.2f}–{one['measured_high']:.2f})"
        clusters = "k-means on pixels" if one["clustering"] == "kmeans" else one["clustering"]
        bound = "at least " if one["plain_reached"] < seeds else ""
        lines.append(
            (
                clusters, f"{one['label_noise']:g}", str(one["groups"]), f"{one['predicted']:.2f}", bound + found,
                f"{one['over_momentum']:.2f}", *steps,
            )
        )  # fmt: skip
    steps = ("Momentum's steps", "one momentum for all", "Discover's")
    heads = ("clusters", "label noise", "G", "expected", "measured (95%)", "over Momentum", *steps)
    return table(heads, lines, "---------")


def measured_gains(record: str) -> str:
    """What the advice expected in each setting of the results, and what each optimizer with clusters won there."""
    lines = []
    for one in load(record)["rows"]:
        ends = (
            "" if one["measured_low"] == one["measured"] else f" ({one['measured_low']:.2f}–{one['measured_high']:.2f})"
        )
        order = "in turn" if one["composition"] == "balanced" else "at random"
        noise = f", label noise {one['label_noise']:g}" if one["label_noise"] else ""
        setting = f"{one['clusters']}, G = {one['groups']}, {order}{noise}"
        lines.append(
            (name(one["optimizer"]), setting, one["model"], f"{one['predicted']:.2f}", f"{one['measured']:.2f}{ends}")
        )
    return table(("optimizer", "batches", "network", "expected", "measured (95%)"), lines, "-----")


def steady_states(record: str) -> str:
    """The error at the end, for the least and the greatest variance between clusters."""
    found = load(record)["between"]
    heads = ("", *(f"$V_{{bet}} = {found['variance'][at]:g}$" for at in (0, -1)))
    return table(heads, [(title, *(short(found[key][at]) for at in (0, -1))) for key, title in STEADY.items()], "---")


def table(heads: Sequence[str], lines: Iterable[Sequence[str]], align: str) -> str:
    marks = ["---:" if one == "r" else "---" for one in align]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, marks, *lines))


def bold(text: str, really: bool) -> str:
    return f"**{text}**" if really else text


def short(value: float) -> str:
    """Three digits; small numbers with an exponent."""
    if value >= 1:
        return f"{value:.0f}"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa}e{int(exponent)}"


TABLES: dict[str, Callable[..., str]] = {
    one.__name__: one
    for one in (
        rows, comparison, grid, contenders, speeds, torch_speeds, torch_agreement, updates, gains,
        measured_gains, steady_states,
    )
}  # fmt: skip
