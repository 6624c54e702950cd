"""Each optimizer with clusters against the plain one that it is compared with, in a sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from discover.lab.records import mean_std
from discover.lab.report.style import series_name
from discover.lab.report.tables import accuracy
from discover.registry import OPTIMIZERS

LEVEL = 0.05


def against_baselines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """For every row whose baseline was trained on the same batches: how far ahead, or that seeds could not tell."""
    return [_sentence(row, baseline) for row, baseline in _pairs(rows)]


def won_back(ours: dict[str, Any], plain: dict[str, Any], control: dict[str, Any] | None) -> float | None:
    """The share of the plain optimizer's loss of accuracy on clustered batches that ``ours`` does not have.

    ``(ours − plain) / (control − plain)`` of the mean test accuracies; None: clustering cost nothing, or nothing that
    the seeds could tell, or they could not tell that any of it was won back.
    """
    if control is None:
        return None
    found = [row["test_accuracy"] for row in (ours, plain, control)]
    means = [one["mean"] for one in found]
    if not all(isinstance(m, int | float) and math.isfinite(m) for m in means) or means[2] - means[1] < 0.005:
        return None
    if not all(can_tell(one["values"], found[1]["values"]) for one in (found[0], found[2])):
        return None
    return (means[0] - means[1]) / (means[2] - means[1])


def can_tell(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether the means of two samples differ by more than their spread explains: Welch's t test at the 5 % level.

    >>> can_tell([0.90, 0.91, 0.92], [0.80, 0.81, 0.82]), can_tell([0.90, 0.80], [0.85, 0.86])
    (True, False)
    """
    if min(len(one), len(other)) < 2:
        return False
    (mean, std), (other_mean, other_std) = mean_std(one), mean_std(other)
    if std == other_std == 0:
        return mean != other_mean
    from scipy.stats import ttest_ind_from_stats

    found = ttest_ind_from_stats(mean, std, len(one), other_mean, other_std, len(other), equal_var=False)
    return bool(found.pvalue < LEVEL)


def _pairs(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    ended = {row["label"]: row for row in rows if (row.get("test_accuracy") or {}).get("mean") is not None}
    for label, row in ended.items():
        entry = OPTIMIZERS.get(label)
        if entry is not None and entry.baseline in ended:
            yield row, ended[entry.baseline]


def _sentence(row: Mapping[str, Any], baseline: Mapping[str, Any]) -> str:
    ours, theirs = row["test_accuracy"], baseline["test_accuracy"]
    who, whom, seeds = series_name(row["label"]), series_name(baseline["label"]), len(ours["values"])
    gap = 100 * (ours["mean"] - theirs["mean"])
    ahead = f"{who} is {abs(gap):.1f} points {'ahead of' if gap >= 0 else 'behind'} {whom}"
    if seeds < 2:
        return f"{ahead} on one seed, which says little."
    both = f"{accuracy(ours)} and {accuracy(theirs)}"
    if not can_tell(ours["values"], theirs["values"]):
        return f"{who} and {whom}: no difference that {seeds} seeds could tell ({both})."
    return f"{ahead} ({both})."
