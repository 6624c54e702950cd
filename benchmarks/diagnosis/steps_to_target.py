"""How many steps a setting needs to a target accuracy: learning rate chosen on some seeds, steps counted on others.

Training ends at the first evaluation that reaches the target, and while learning rates are compared a choice is given
up where it can no longer be the quickest; so a comparison over many settings costs little more than its slowest ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from discover.lab.data import Dataset
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.run.run import Member, run
from discover.lab.training.errors import NonFiniteLoss
from discover.lab.training.progress import Quiet


class _Reached(Exception):
    """Ends a training whose question is answered."""


class _Watch(Quiet):
    """Ends the training at the first evaluation on validation examples that reaches the target."""

    def __init__(self, target: float):
        self.target, self.best, self.step = target, 0.0, None

    def evaluated(self, *, step: int, split: str, loss: float, accuracy: float) -> None:
        if split != "validation":
            return
        self.best = max(self.best, accuracy)
        if accuracy >= self.target:
            self.step = step
            raise _Reached


def until_target(
    config: Config,
    values: dict[str, float],
    seed: int,
    *,
    target: float,
    limit: int,
    dataset: Dataset,
    programs: MutableMapping[str, Any],
) -> tuple[int | None, float]:
    """Trains one member until an evaluation on the validation split reaches the target.

    Returns:
      The step, None where the target was not reached (also where the loss did not stay finite); the best accuracy seen.
    """
    if dataset.validation is None or not len(dataset.validation):
        raise ValueError(f"steps to a target are counted on a validation split, and {dataset.name} has none")
    watch = _Watch(target)
    short = config.with_values({"training.steps": limit, "training.schedule": "constant"})
    with contextlib.suppress(_Reached, NonFiniteLoss):
        run(
            short, None, members=[Member(seed, values)], dataset=dataset, checkpoints=False, programs=programs,
            progress=watch,
        )  # fmt: skip
    return watch.step, watch.best


@dataclass(frozen=True)
class Steps:
    """What a race found.

    Attributes:
      values: the hyperparameters chosen on the tuning seeds.
      by_seed: steps of every seed; the limit where the target was not reached.
      reached: how many seeds reached it.
    """

    values: dict[str, float]
    by_seed: tuple[int, ...]
    reached: int

    @property
    def mean(self) -> float:
        """Over the seeds; a lower bound where not all of them reached the target."""
        return sum(self.by_seed) / len(self.by_seed)


@dataclass
class Race:
    """Counts steps to a target for many settings of the same data."""

    dataset: Dataset
    limit: int
    tuning_seeds: Sequence[int]
    seeds: Sequence[int]
    programs: dict[str, Any] = field(default_factory=dict)

    def steps(self, config: Config, choices: Sequence[dict[str, float]], target: float) -> Steps:
        """The quickest of `choices` over the tuning seeds (the first of equals), and its steps on the other seeds.

        Where none reaches the target on any tuning seed, the one with the best accuracy is taken.
        """
        common: dict[str, Any] = {"target": target, "dataset": self.dataset, "programs": self.programs}
        never = self.limit * len(self.tuning_seeds)
        quickest: tuple[int, float, dict[str, float]] = (never, -1.0, choices[0])
        for values in choices:
            spent, accuracy = 0, 0.0
            for seed in self.tuning_seeds:
                left = min(self.limit, quickest[0] - spent)
                found, best = until_target(config, values, seed, limit=left, **common)
                spent += self.limit if found is None else found
                accuracy = max(accuracy, best)
                if spent >= quickest[0] and quickest[0] < never:
                    break
            if (spent, -accuracy) < (quickest[0], -quickest[1]):
                quickest = (spent, accuracy, values)
        found = [until_target(config, quickest[2], seed, limit=self.limit, **common)[0] for seed in self.seeds]
        steps = tuple(self.limit if step is None else step for step in found)
        return Steps(quickest[2], steps, sum(step is not None for step in found))
