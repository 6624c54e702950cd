"""Named settings: a configuration, each optimizer's hyperparameters, what to compare, and what to expect.

Nothing here imports jax, so that `discover presets` answers at once; the one thing that needs the optimizers (the
paper's pairs (α, α_n) mapped to (β, ν, μ')) is computed when a configuration is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType

from discover.lab.experiments.config.config import (
    OPTIMIZERS,
    BatchConfig,
    ClustersConfig,
    Config,
    DataConfig,
    ModelConfig,
    TrainingConfig,
)
from discover.lab.experiments.config.values import ConfigError, choose

Hyperparameters = Mapping[str, float]
"""An optimizer's, by name; `learning_rate` among them."""
PLAIN = ("momentum", "sgd", "qhm", "igt", "adam")
"""The optimizers that average the groups, in the order of the tables."""
OURS = ("discover", "discover_qhm", "discover_igt")
"""The paper's three with one momentum per cluster."""
DISCOVER_ADAM: Hyperparameters = MappingProxyType({"beta": 0.95, "nu": 0.95, "beta1": 0.0, "beta2": 0.999, "eps": 1e-8})
"""The library's defaults; every preset adds a third of its Adam's learning rate, as docs/adam.md advises."""


@dataclass(frozen=True)
class Preset:
    """One setting of an experiment.

    Attributes:
        name: as typed on the command line.
        summary: one line that says what it is.
        config: everything but the optimizer.
        optimizers: each optimizer's hyperparameters, `learning_rate` among them; or a function that computes them.
        compare: the optimizers that `discover compare` trains unless told otherwise.
        learning_rates: the grid from which every optimizer's learning rate is chosen.
        target_accuracy: the accuracy for "steps to reach".
        source: where the values come from.
        reported: test accuracies in percent that the source reports, by optimizer.
        cost: how long it takes, and on what.
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

    def hyperparameters(self, optimizer: str) -> dict[str, float]:
        """The optimizer's hyperparameters in this setting.

        Raises:
            ConfigError: the preset has no such optimizer, or the paper's values lie outside our family.
        """
        choose("optimizer", optimizer, OPTIMIZERS)
        if optimizer not in self.optimizers:
            raise ConfigError(f"preset {self.name!r} has no {optimizer!r}: choose from {', '.join(self.optimizers)}")
        values = self.optimizers[optimizer]
        return dict(values() if callable(values) else values)

    def config_for(self, optimizer: str) -> Config:
        """The whole configuration for training with ``optimizer``."""
        values = {f"optimizer.{key}": value for key, value in self.hyperparameters(optimizer).items()}
        return self.config.with_values({"name": self.name, "optimizer.name": optimizer, **values})


def get_preset(name: str) -> Preset:
    """Returns the preset of that name.

    Raises:
        ConfigError: there is none; the message names the nearest one.

    Example:
        >>> get_preset("digits").config_for("momentum").optimizer.beta
        0.9
    """
    return presets()[choose("preset", name, presets())]


@cache
def presets() -> Mapping[str, Preset]:
    """Every preset, by name, in the order in which they are listed."""
    from discover.lab.experiments.presets.paper import paper_presets

    found = (_digits(), _digits_noise(), *paper_presets())
    return MappingProxyType({preset.name: preset for preset in found})


_DIGITS_OPTIMIZERS: Mapping[str, Hyperparameters] = MappingProxyType(
    {
        "momentum": {"learning_rate": 0.1, "beta": 0.9},
        "sgd": {"learning_rate": 0.1},
        "qhm": {"learning_rate": 0.1, "beta": 0.9, "nu": 0.7},
        "igt": {"learning_rate": 0.1, "beta": 0.9, "tail_fraction": 18.0},
        "adam": {"learning_rate": 0.003, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
        "discover": {"learning_rate": 0.1, "beta": 0.95, "nu": 0.95},
        "discover_qhm": {"learning_rate": 0.1, "beta": 0.95, "nu": 0.7},
        "discover_igt": {"learning_rate": 0.1, "beta": 0.95, "nu": 0.95, "tail_fraction": 18.0},
        "discover_adam": {"learning_rate": 0.001, **DISCOVER_ADAM},
    }
)


def _digits() -> Preset:
    return Preset(
        name="digits",
        summary="Embedded 8x8 digits, every batch of one class only: what that costs, and what is won back.",
        config=Config(
            name="digits",
            data=DataConfig(source="digits", validation=0.2),
            clusters=ClustersConfig(by="classes"),
            batches=BatchConfig(composition="random", groups=1, group_size=32),
            model=ModelConfig(name="mlp", depth=2, width=64),
            training=TrainingConfig(
                steps=200, warmup_steps=5, seeds=(0, 1, 2, 3, 4), log_every=5, eval_every=10, steps_per_dispatch=10,
                on_nonfinite="drop",
                member_mode="vmap",  # side by side: many small matrices are quicker as a few large ones, also on a CPU
            ),
        ),
        optimizers=_DIGITS_OPTIMIZERS,
        compare=(*PLAIN, *OURS),
        learning_rates=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
        target_accuracy=0.9,
        source="ours; docs/compare.md says how it was chosen",
        cost="about two minutes on 2 CPU cores for the whole comparison",
    )  # fmt: skip


def _digits_noise() -> Preset:
    base = _digits()
    return Preset(
        name="digits-noise",
        summary="The same digits with 40% of the labels replaced at every sight; clusters go by the noisy label.",
        config=base.config.with_values({"name": "digits-noise", "data.label_noise": 0.4, "training.steps": 400}),
        optimizers=_DIGITS_OPTIMIZERS,
        compare=base.compare,
        learning_rates=base.learning_rates,
        target_accuracy=0.7,
        source="ours, after the paper's label noise",
        cost="about three minutes on 2 CPU cores for the whole comparison",
    )
