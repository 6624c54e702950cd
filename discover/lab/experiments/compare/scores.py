"""What runs reached, summed up: mean and spread over seeds, the best learning rate, the first step at a target."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from discover.lab.records import spread

Quantity = Literal["accuracy", "loss"]


def choose_rate(
    members: Sequence[dict[str, Any]],
    learning_rates: Sequence[float],
    seeds: Sequence[int],
    by: Quantity = "accuracy",
) -> tuple[int, list[dict[str, Any]]]:
    """Picks the learning rate with the highest mean validation accuracy (or the lowest loss) at the last step.

    A rate at which any seed diverged cannot be chosen (unless all did). Of equals the smaller wins.

    Args:
        members: as in a grid's ``summary.json``: for each learning rate, in order, one member a seed.
        learning_rates: the grid.
        seeds: the seeds.
        by: what decides.

    Returns:
        The index of the choice, and for every rate its mean and spread.
    """
    grid = []
    for index, rate in enumerate(learning_rates):
        own = members[index * len(seeds) : (index + 1) * len(seeds)]
        found = [(member.get("final") or {}).get("validation") or {} for member in own]
        grid.append({"learning_rate": rate, f"validation_{by}": spread([one.get(by) for one in found])})
    scores = [point[f"validation_{by}"]["mean"] for point in grid]
    scores = [-math.inf if score is None else score if by == "accuracy" else -score for score in scores]
    return scores.index(max(scores)), grid


def spreads(final: Mapping[str, Any], seeds: Sequence[int]) -> dict[str, Any]:
    """What a table says of a run: its ``final``, from the summary, as mean and spread."""
    nothing: list[None] = [None] * len(seeds)
    return {
        f"{split}_{quantity}": spread(final.get(split, {}).get(quantity, nothing))
        for split in ("validation", "test")
        for quantity in ("accuracy", "loss")
    }


def cluster_spreads(members: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Accuracy and loss on the test split by cluster, ``{cluster: {quantity: spread}}``; {} where there are none."""
    by_member = [((member.get("final") or {}).get("test") or {}).get("clusters") or {} for member in members]
    names = dict.fromkeys(name for clusters in by_member for name in clusters)
    return {
        name: {
            quantity: spread([clusters.get(name, {}).get(quantity) for clusters in by_member])
            for quantity in ("accuracy", "loss")
        }
        for name in names
    }


def first_steps(metrics: Iterable[dict[str, Any]], seeds: Sequence[int], target: float) -> list[int | None]:
    """For each seed the first evaluated step at which its validation accuracy was at least ``target``."""
    first: dict[int, int] = {}
    for line in metrics:
        if line.get("kind") == "eval" and line.get("split") == "validation" and (line.get("accuracy") or 0) >= target:
            first[line["seed"]] = min(line["step"], first.get(line["seed"], line["step"]))
    return [first.get(seed) for seed in seeds]
