"""What a preset is: a configuration, each optimizer's hyperparameters, what to compare, and what to expect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from discover.lab.experiments.config.config import Config, ConfigError
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
        optimizers: each optimizer's hyperparameters, `learning_rate` among them; or a function that computes them. With
            none at all, every optimizer is at its own defaults; one of the user's own is where it is not named.
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

        Raises:
            ConfigError: the preset has no such optimizer, or the paper's values lie outside our family.
        """
        OPTIMIZERS.find(optimizer)
        if optimizer in self.optimizers:
            values = self.optimizers[optimizer]
            return dict(values() if callable(values) else values)
        if self.optimizers and optimizer in OPTIMIZERS:
            raise ConfigError(f"preset {self.name!r} has no {optimizer!r}: choose from {', '.join(self.optimizers)}")
        return {}

    def config_for(self, optimizer: str) -> Config:
        """The whole configuration for training with ``optimizer``."""
        section, has = self.config.optimizer, OPTIMIZERS.find(optimizer).types
        shared = {name: value for name, value in section.arguments.items() if name in has}
        config = replace(self.config, name=self.name, optimizer=replace(section, name=optimizer, arguments=shared))
        return config.with_values({f"optimizer.{key}": value for key, value in self.hyperparameters(optimizer).items()})
