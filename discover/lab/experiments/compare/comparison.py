"""What is compared: which optimizers, on which batches, over which learning rates; checked before training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from discover.lab.experiments.config.config import Config, ConfigError
from discover.lab.experiments.presets.preset import Preset
from discover.registry import OPTIMIZERS, REFERENCE

CONTROL = f"{REFERENCE}-shuffled"
"""The label of the control: the reference on shuffled batches."""


@dataclass(frozen=True)
class Entry:
    """One row of the table: a label and the configuration that all its runs share but for learning rate and seed."""

    label: str
    config: Config

    @property
    def control(self) -> bool:
        return self.label == CONTROL

    @property
    def folder(self) -> str:
        """The label as a folder's name on every system, also for `module:function`."""
        return self.label.replace(":", ".")


@dataclass(frozen=True)
class Comparison:
    """What is compared, checked. It is all that decides the results."""

    preset: str
    summary: str
    entries: tuple[Entry, ...]
    learning_rates: tuple[float, ...]
    target_accuracy: float

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.entries[0].config.training.seeds

    def to_dict(self) -> dict[str, Any]:
        """Returns what `comparison.json` keeps of it as its "plan"."""
        return {
            "preset": self.preset,
            "learning_rates": list(self.learning_rates),
            "target_accuracy": self.target_accuracy,
            "entries": {entry.label: entry.config.to_dict() for entry in self.entries},
        }


def make_comparison(
    preset: Preset,
    *,
    optimizers: Sequence[str] | None = None,
    learning_rates: Sequence[float] | None = None,
    target_accuracy: float | None = None,
    control: bool = True,
    overrides: Iterable[str] = (),
) -> Comparison:
    """Settles a comparison and checks everything that can be checked before training.

    Args:
        preset: the setting.
        optimizers: which ones; default: the preset's.
        learning_rates: the grid that all of them share; default: the preset's.
        target_accuracy: for "steps to reach", in (0, 1]; default: the preset's.
        control: whether the reference on shuffled batches is trained too.
        overrides: ``key=value`` texts applied to every configuration.

    Raises:
        ConfigError: an unknown optimizer or key, an empty or impossible grid, target or configuration.
    """
    overrides = list(overrides)
    names = list(preset.compare if optimizers is None else optimizers)
    if not names:
        raise ConfigError("a comparison needs at least one optimizer, got none")
    if len(set(names)) != len(names):
        raise ConfigError(f"each optimizer can be compared once, got {', '.join(names)}")
    entries = [Entry(name, _config(preset, name, overrides)) for name in names]
    if control:
        shuffled = _config(preset, REFERENCE, overrides).with_values({"batches.composition": "shuffled"})
        entries.append(Entry(CONTROL, shuffled.check()))
    config = entries[0].config
    if not 0 < config.data.validation < 1:
        raise ConfigError(
            "a comparison chooses learning rates on a validation split: add --set data.validation=0.1 "
            f"(now {config.data.validation:g})"
        )
    return Comparison(
        preset=preset.name,
        summary=preset.summary,
        entries=tuple(entries),
        learning_rates=_check_rates(preset.learning_rates if learning_rates is None else learning_rates),
        target_accuracy=_check_target(preset.target_accuracy if target_accuracy is None else target_accuracy),
    )


def describe_batches(config: Config) -> str:
    """How a batch is made, in a few words.

    >>> describe_batches(Config())
    '8 class-pure groups of 32'
    """
    batches = config.batches
    noun = "group" if batches.groups == 1 else "groups"
    return f"{batches.groups} {purity(config)} {noun} of {batches.group_size}"


def purity(config: Config) -> str:
    """`class-pure` or whatever the groups of a batch are; `shuffled` where they are not pure at all."""
    if config.batches.composition == "shuffled":
        return "shuffled"
    return f"{config.clusters.values_of or config.clusters.entry.singular}-pure"


def _config(preset: Preset, optimizer: str, overrides: list[str]) -> Config:
    """The preset's configuration with the overrides that concern this optimizer."""
    instead = {
        "optimizer.name": "--optimizers",
        "optimizer.learning_rate": "--learning-rates",
        "batches.composition": "--no-control, or a run with `discover train`",
        "name": "another preset",
    }
    for text in overrides:
        key = text.partition("=")[0].strip()
        if key in instead:
            raise ConfigError(f"{key} cannot be set in a comparison; use {instead[key]}")
    return override_own(preset.config_for(optimizer), overrides).check()


def override_own(config: Config, overrides: Iterable[str]) -> Config:
    """Applies what concerns the optimizer: ``--set optimizer.nu=0.5`` is for those that have a ν."""
    entry = config.optimizer.entry
    every = {name for other in OPTIMIZERS.values() for name in other.types} - set(entry.types)
    every |= {key for key, argument in entry.by_layer.items() if argument not in entry.parameters}
    foreign = {f"optimizer.{name}" for name in every}
    for text in overrides:
        changed = config.override([text])  # in any case: what cannot be is told
        config = config if text.partition("=")[0].strip() in foreign else changed
    return config


def _check_rates(learning_rates: Sequence[float]) -> tuple[float, ...]:
    rates = tuple(sorted(float(rate) for rate in learning_rates))
    if not rates:
        raise ConfigError("the grid needs at least one learning rate, got none")
    if not all(math.isfinite(rate) and rate > 0 for rate in rates):
        raise ConfigError(f"learning rates must be above 0, got {', '.join(f'{rate:g}' for rate in rates)}")
    if len(set(rates)) != len(rates):
        raise ConfigError(f"learning rates must differ from each other, got {', '.join(f'{r:g}' for r in rates)}")
    return rates


def _check_target(target: float) -> float:
    if not (math.isfinite(target) and 0 < target <= 1):
        near = f" (did you mean {target / 100:g}?)" if 1 < target <= 100 else ""
        raise ConfigError(f"the target accuracy must be above 0 and at most 1, got {target:g}{near}")
    return float(target)
