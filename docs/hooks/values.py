"""Single numbers of records, as the pages say them. The arguments are the words of a note: a record, a row of it."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from records import find, load, percent, plain, row


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
    """Held-out loss on the six kinds of text, over the seeds that took no part in the choice."""
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


NUMBERS: dict[str, Callable[..., str]] = {
    one.__name__: one
    for one in (
        accuracy, mean, gap, won_back, rate, drift, speed, milliseconds, megabytes, floor, loss, rank_correlation,
    )
}  # fmt: skip
