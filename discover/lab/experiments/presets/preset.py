"""What a preset is: a configuration, each optimizer's hyperparameters, what to compare, and what to expect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from discover.lab.experiments.config.config import Config
from discover.lab.experiments.config.sections import Argument
from discover.registry import OPTIMIZERS, Axis

Hyperparameters = Mapping[str, Argument]
"""An optimizer's, by name; `learning_rate` among them."""
Space = Mapping[str, Axis]
"""What is searched, by hyperparameter."""


@dataclass(frozen=True)
class Preset:
    """One setting of an experiment.

    Attributes:
        name: as typed on the command line.
        summary: one line that says what it is.
        config: everything but the optimizer's name. Arguments in its optimizer section hold for those that have them.
        optimizers: each optimizer's hyperparameters, `learning_rate` among them; or a function that computes them.
        compare: the optimizers that `discover compare` trains unless told otherwise.
        learning_rates: the grid from which every optimizer's learning rate is chosen.
        target_accuracy: the accuracy for "steps to reach".
        source: where the values come from.
        reported: test accuracies in percent that the source reports, by optimizer.
        cost: how long it takes, and on what.
        search: what the source searched, by optimizer and hyperparameter.
    """

    name: str
    summary: str
    config: Config
    optimizers: Mapping[str, Hyperparameters | Callable[[], Hyperparameters]]
    compare: tuple[str, ...]
    learning_rates: tuple[float, ...]
    target_accuracy: float
    source: str
    reported: Mapping[str, float] = field(default_factory=dict)
    cost: str = ""
    search: Mapping[str, Space] = field(default_factory=dict)

    def hyperparameters(self, optimizer: str) -> dict[str, Argument]:
        """The optimizer's hyperparameters in this setting.

        One that the preset does not name is at its own defaults, and what has none in the middle of what the table
        says is worth trying.
        """
        entry = OPTIMIZERS.find(optimizer)
        if optimizer not in self.optimizers:
            needed = [name for name in ("learning_rate", *entry.required) if name in entry.search]
            return {name: entry.search[name].middle for name in needed}
        values = self.optimizers[optimizer]
        return dict(values() if callable(values) else values)

    def config_for(self, optimizer: str) -> Config:
        """The whole configuration for training with ``optimizer``."""
        section, has = self.config.optimizer, OPTIMIZERS.find(optimizer).types
        shared = {name: value for name, value in section.arguments.items() if name in has}
        config = replace(self.config, name=self.name, optimizer=replace(section, name=optimizer, arguments=shared))
        return config.with_values({f"optimizer.{key}": value for key, value in self.hyperparameters(optimizer).items()})
