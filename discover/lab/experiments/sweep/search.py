"""What a sweep searches: preset, optimizer, space, method; checked before anything is trained.

A *space* has for each hyperparameter the values of a grid: those that a preset's source searched, or the table's, or
given ones. A search by optuna draws from the range between the smallest and the largest of them (uniformly in the
logarithm where `log`, in log(1 - value) for momenta: `tail`).
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from discover.lab.experiments.config.check import check_optimizer
from discover.lab.experiments.config.config import Config, ConfigError
from discover.lab.experiments.presets.preset import Preset, Space
from discover.registry import OPTIMIZERS, Axis, Shape, choose

DEFAULT_TRIALS = 40
"""Of a search by optuna, unless told otherwise."""


@dataclass(frozen=True)
class Search:
    """What a sweep does, checked. It is all that decides the trials and the winner.

    Attributes:
        preset: its name.
        config: of every trial, but for the hyperparameters that are searched.
        space_kind: whose space it is: `paper`, `ours` or `given`.
        space: the hyperparameters that are searched.
        method: `grid` tries every combination (or ``trials`` of them, drawn at random), `tpe` asks optuna.
        trials: how many.
        seed: of the search.
        prune: whether optuna may end hopeless trials early.
    """

    preset: str
    config: Config
    space_kind: str
    space: Space
    method: Literal["grid", "tpe"]
    trials: int
    seed: int
    prune: bool

    @property
    def optimizer(self) -> str:
        return self.config.optimizer.name

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; where the data lies is left out, since it decides nothing."""
        return {
            "preset": self.preset,
            "optimizer": self.optimizer,
            "search": self.method,
            "trials": self.trials,
            "seed": self.seed,
            "prune": self.prune,
            "space_kind": self.space_kind,
            "space": {name: {**asdict(axis), "values": list(axis.values)} for name, axis in self.space.items()},
            "config": self.config.with_values({"data.path": None}).to_dict(),
        }

    def points(self) -> list[dict[str, float]]:
        """The grid's combinations in order; ``trials`` of them, drawn with the seed, where there are more."""
        names = list(self.space)
        everything = itertools.product(*(self.space[name].values for name in names))
        total = math.prod(len(axis.values) for axis in self.space.values())
        wanted = set(random.Random(self.seed).sample(range(total), min(self.trials, total)))
        return [dict(zip(names, values)) for index, values in enumerate(everything) if index in wanted]

    def trial_config(self, params: Mapping[str, float]) -> Config:
        """The configuration of one trial."""
        return self.config.with_values({f"optimizer.{name}": value for name, value in params.items()}).check()


def make_search(
    preset: Preset,
    optimizer: str,
    *,
    method: str = "grid",
    space: str = "auto",
    axes: Iterable[str] = (),
    trials: int | None = None,
    seed: int = 0,
    prune: bool = True,
    overrides: Iterable[str] = (),
) -> Search:
    """Settles a sweep and checks everything that can be checked before training.

    Args:
        preset: the setting.
        optimizer: whose hyperparameters are searched.
        method: `grid` or `tpe`.
        space: `paper`, `ours`, or `auto` (the paper's where it has one).
        axes: ``name=value,value`` texts: these hyperparameters only, instead of the space.
        trials: how many; default: the whole grid, or 40 for `tpe`.
        seed: of the search.
        prune: whether `tpe` may end hopeless trials early.
        overrides: ``key=value`` texts applied to the configuration.
    """
    entry = OPTIMIZERS.find(optimizer)
    choose("search", method, ("grid", "tpe"))
    choose("space", space, ("auto", "paper", "ours"))
    overrides = list(overrides)
    for text in overrides:
        if text.partition("=")[0].strip() in ("optimizer.name", "name"):
            raise ConfigError(f"{text.partition('=')[0].strip()} cannot be set in a sweep; use --optimizer")
    config = preset.config_for(optimizer).override(overrides).with_values({"training.on_nonfinite": "drop"}).check()
    if not 0 < config.data.validation < 1:
        raise ConfigError(
            "a sweep chooses on a validation split: add --set data.validation=0.1 "
            f"(now {config.data.validation:g}); the test split is looked at once, for the winner"
        )
    given = [parse_axis(text) for text in axes]
    kind, chosen = ("given", dict(given)) if given else get_space(preset, optimizer, space)
    if len(chosen) < len(given):
        raise ConfigError(f"each hyperparameter can be given once, got {', '.join(name for name, _ in given)}")
    allowed = ("learning_rate", *entry.hyperparameters, "clip_norm")
    for name, axis in chosen.items():
        choose(f"hyperparameter of {optimizer}", name, allowed)
        for value in axis.values:
            check_optimizer(config.with_values({f"optimizer.{name}": value}).optimizer)
    total = math.prod(len(axis.values) for axis in chosen.values())
    number = trials if trials is not None else total if method == "grid" else DEFAULT_TRIALS
    if number < 1:
        raise ConfigError(f"a sweep needs at least 1 trial, got {number}")
    if method == "grid":
        number = min(number, total)
    return Search(preset.name, config, kind, chosen, method, number, seed, prune and method == "tpe")  # pyright: ignore


def get_space(preset: Preset, optimizer: str, kind: str = "auto") -> tuple[str, Space]:
    """The space of an optimizer in a preset."""
    paper = preset.search
    if kind == "paper" or (kind == "auto" and optimizer in paper):
        if optimizer not in paper:
            have = ", ".join(paper) if paper else "none of its optimizers"
            raise ConfigError(
                f"the paper has no grid for {optimizer!r} in {preset.name!r} (it has: {have}); use --space ours"
            )
        return "paper", paper[optimizer]
    return "ours", OPTIMIZERS.find(optimizer).search


def parse_axis(text: str) -> tuple[str, Axis]:
    """Reads ``beta=0.9,0.95`` as an axis, for the command line.

    >>> parse_axis("beta=0.9,0.95")
    ('beta', Axis(values=(0.9, 0.95), shape='tail'))
    """
    name, _, values = text.partition("=")
    name = name.strip().removeprefix("optimizer.")
    try:
        numbers = tuple(float(part) for part in values.split(",") if part.strip())
    except ValueError:
        numbers = ()
    if not name or not numbers:
        raise ConfigError(f"expected NAME=VALUE,VALUE, got {text!r}")
    if len(set(numbers)) != len(numbers):
        raise ConfigError(f"values of {name} must differ from each other, got {values}")
    shapes: dict[str, Shape] = {"nu": "linear", "beta": "tail", "beta1": "tail", "beta2": "tail"}
    positive = min(numbers) > 0
    shape: Shape = shapes.get(name, "log" if positive else "linear")
    if shape == "tail" and not all(0 <= number < 1 for number in numbers):
        raise ConfigError(f"values of {name} must be in [0, 1), got {values}")
    return name, Axis(numbers, shape)
