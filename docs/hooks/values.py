"""Single numbers of records, as the pages say them. The arguments are the words of a note: a record, a row of it."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from records import NoRecord, find, load, nats, percent, plain, row
from tables import short


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


def test_loss(record: str, label: str) -> str:
    """Test loss in nats, mean ± standard deviation."""
    return nats(row(record, label)["test_loss"])


def less(record: str, label: str, other: str, other_record: str = "") -> str:
    """By how many nats a row's test loss is below another's, or above."""
    mine, theirs = (row(*one)["test_loss"]["mean"] for one in ((record, label), (other_record or record, other)))
    return f"{abs(mine - theirs):.3f}"


def rate(record: str, label: str) -> str:
    """The chosen learning rate."""
    return plain(row(record, label)["learning_rate"])


def drift(record: str, label: str, which: str) -> str:
    """The least, greatest or last distance of ḡ from the mean of the buffers along a run."""
    values = [line["drift"] for line in row(record, label)["lines"]]
    value = {"least": min(values), "greatest": max(values), "last": values[-1]}[which]
    return f"{value:.1f}" if value >= 0.1 else f"{value:.0e}"


def speed(record: str, optimizer: str, groups: str, more: str = "") -> str:
    """Steps a second, for each of momentum's."""
    return f"{_bench(record, optimizer, groups, more)['ratio']:.3f}"


def lowest(record: str, optimizer: str, groups: str, more: str = "") -> str:
    """The least of the repeats' `speed`."""
    return f"{_bench(record, optimizer, groups, more)['ratio_lowest']:.3f}"


def highest(record: str, optimizer: str, groups: str, more: str = "") -> str:
    """The greatest of them."""
    return f"{_bench(record, optimizer, groups, more)['ratio_highest']:.3f}"


def milliseconds(record: str, optimizer: str, groups: str, more: str = "") -> str:
    """The time of a step."""
    return f"{_bench(record, optimizer, groups, more)['milliseconds']:.2f}"


def of_muon(record: str, optimizer: str, groups: str, more: str = "") -> str:
    """Steps a second, for each of Muon's."""
    found = _bench(record, optimizer, groups, more)
    return f"{found.get('of_muon', found.get('baseline_ratio')):.3f}"


def longer(record: str, optimizer: str, groups: str, more: str, other: str) -> str:
    """By how many percent a step takes longer than with the other value."""
    mine, theirs = (_bench(record, optimizer, groups, one)["milliseconds"] for one in (more, other))
    return f"{100 * (mine / theirs - 1):.1f}"


def megabytes(record: str, optimizer: str, groups: str, more: str = "") -> str:
    """What the optimizer keeps."""
    return f"{_bench(record, optimizer, groups, more)['state_bytes'] / 1e6:,.0f}"


def floor(record: str, optimizer: str, groups: str) -> str:
    """The update's time, in units of the time that its memory traffic needs."""
    return f"{find(load(record)['updates'], optimizer=optimizer, groups=groups)['times_floor']:.2f}"


def torch_ms(record: str, kind: str, optimizer: str) -> str:
    """Milliseconds of a step in PyTorch; the optimizer may be of two words."""
    return f"{load(record)['torch'][kind]['milliseconds'][optimizer.replace('; ', ', ')]:.1f}"


def torch_accuracy(record: str, setting: str) -> str:
    """Test accuracy in percent of the one training of a setting in PyTorch."""
    return f"{find(load(record)['rows'], setting=setting)['accuracy']:.1f}"


def jax_over_torch(record: str) -> str:
    """Steps of our JAX momentum for each of torch's SGD, the network compiled."""
    return f"{next(value for key, value in load(record).items() if key.startswith('our JAX')):.2f}"


def loss(name: str) -> str:
    """Held-out loss on the six kinds of text, over the seeds that took no part in the choice."""
    values = [one["loss"] for one in load("text-domains")["best_seeds_1_to_5"] if one["name"] == name]
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"


def gain(record: str, which: str, clustering: str = "") -> str:
    """The least or greatest measured gain of the advice: of all settings, by a clustering, or "not" by it."""
    wanted, other = clustering.removeprefix("not "), clustering.startswith("not ")
    rows = load(record)["rows"]
    found = [one["measured"] for one in rows if not wanted or (one["clustering"] == wanted) != other]
    if not found:
        raise NoRecord(f"no row has the clustering {wanted!r}; there are {sorted({one['clustering'] for one in rows})}")
    return f"{(min(found) if which == 'least' else max(found)):.2f}"


def steady(section: str, optimizer: str, *where: str) -> str:
    """A steady state of the theory's simulations: by variance, multiple of the limit, batch and step, or groups."""
    return short(_steady(section, optimizer, *where))


def grows(section: str, optimizer: str, start: str, end: str) -> str:
    """By what a steady state is multiplied between two of its settings."""
    return f"{_steady(section, optimizer, end) / _steady(section, optimizer, start):.4g}"


def stable_rank(stage: str) -> str:
    """Of one weight matrix's step: the sum of its squared singular values over the largest."""
    return f"{statistics.mean(row('singular-values', stage)['stable_rank']):.1f}"


def violations(optimizer: str) -> str:
    """In how many of the random problems an optimizer left the bound of the theorem."""
    return str(sum(one[optimizer]["violations"] for one in load("theory")["bound"]["rows"]))


def rank_correlation(record: str, end: str = "") -> str:
    """Of the gains that the advice expected and those that were measured (Spearman's), or an end of its interval."""
    if end:
        return f"{load(record)[f'rank_correlation_{end}']:.2f}"
    found = load(record)["rows"]
    return f"{statistics.correlation(*(_ranks([one[key] for one in found]) for key in ('predicted', 'measured'))):.2f}"


def family(record: str, optimizer: str, end: str = "") -> str:
    """The rank correlation of one optimizer's gains, or an end of its interval."""
    return f"{load(record)['families'][optimizer]['_'.join(filter(None, ('rank_correlation', end)))]:.2f}"


def comparisons(record: str) -> str:
    """How many gains were measured."""
    return str(len(load(record)["rows"]))


def _ranks(values: Sequence[float]) -> list[float]:
    return [sum(other < value for other in values) + sum(other == value for other in values) / 2 for value in values]


def _steady(section: str, optimizer: str, *where: str) -> float:
    found = load("theory")[section]
    if section == "groups":
        return find(found["rows"], groups=where[0])[optimizer]
    if section == "scaling":
        found, where = find(found["rows"], batch_size=where[0]), where[1:]
    settings = found[{"between": "variance", "step_size": "multiple", "scaling": "step_size"}[section]]
    return found[optimizer][[f"{one:.4g}" for one in settings].index(where[0])]


def _mean(record: str, label: str) -> float:
    return 100 * row(record, label)["test_accuracy"]["mean"]


def _bench(record: str, optimizer: str, groups: str, more: str = "") -> dict[str, Any]:
    """A row; more is how many clusters it has, or another of its fields, as in `variant=damping=0.1`."""
    field, told, value = more.partition("=")
    wanted = {field: value} if told else {"clusters": more} if more else {}
    return find(load(record)["rows"], optimizer=optimizer, groups=groups, **wanted)


NUMBERS: dict[str, Callable[..., str]] = {
    one.__name__: one
    for one in (
        accuracy, mean, gap, won_back, test_loss, less, rate, drift, speed, lowest, highest, milliseconds, of_muon,
        longer, megabytes, floor, torch_ms, torch_accuracy, jax_over_torch, loss, gain, stable_rank, rank_correlation,
        steady, grows, violations, family, comparisons,
    )
}  # fmt: skip
