"""What a run is: a frozen, typed, JSON-able configuration, and the ``key=value`` language that changes it.

Nothing here imports jax, so that the command line answers at once; an optimizer or a model is loaded when one of its
own arguments is set, or the configuration is checked.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from discover.lab.experiments.config.keys import ARGUMENTS, entry_of, key_types, type_of
from discover.lab.experiments.config.sections import (
    BatchConfig,
    ClustersConfig,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    TrainingConfig,
)
from discover.lab.experiments.config.values import ConfigError, check_value, parse_value
from discover.registry import Made

__all__ = [
    "BatchConfig",
    "ClustersConfig",
    "Config",
    "ConfigError",
    "DataConfig",
    "ModelConfig",
    "OptimizerConfig",
    "TrainingConfig",
]

_SAME_AS_UNSET = {"weight_decay": 0.0, "l2": 0.0, "rate": "proportional", "estimate_probs": False}
"""What is off; older versions wrote it for every optimizer, whether it has such an argument or not."""


@dataclass(frozen=True)
class Config:
    """A whole run. ``config.check()`` raises :class:`ConfigError` for values that cannot be.

    Example:
        >>> config = Config().override(["optimizer.name=momentum", "training.seeds=0,1"])
        >>> config.optimizer.name, config.training.seeds
        ('momentum', (0, 1))
    """

    name: str = "custom"
    data: DataConfig = field(default_factory=DataConfig)
    clusters: ClustersConfig = field(default_factory=ClustersConfig)
    batches: BatchConfig = field(default_factory=BatchConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def override(self, assignments: Iterable[str]) -> Config:
        """Applies ``key=value`` texts in order, as typed after ``--set``."""
        result = self
        for text in assignments:
            key, sep, value = text.partition("=")
            key = key.strip()
            if not sep or not key:
                raise ConfigError(f"expected key=value, got {text!r}")
            result = result.with_values({key: parse_value(key, value.strip(), type_of(result, key))})
        return result

    def with_values(self, values: Mapping[str, Any]) -> Config:
        """Replaces values by dotted key, type-checked: ``{"data.label_noise": 0.4}``.

        A run has one length: giving steps takes back epochs, and the other way round.

        Raises:
            ConfigError: an unknown key (with the nearest one), or a value of the wrong type.
        """
        result = self
        # Names first: they say which other keys there are.
        for key, value in sorted(values.items(), key=lambda item: not item[0].endswith(".name")):
            result = result._with(key, check_value(key, value, type_of(result, key)))
        for one, other in (("training.steps", "training.epochs"), ("training.epochs", "training.steps")):
            if values.get(one) is not None and other not in values:
                result = result._with(other, None)
        return result

    def _with(self, key: str, value: Any) -> Config:
        section, _, name = key.rpartition(".")
        if not section:
            return replace(self, **{name: value})
        before = getattr(self, section)
        if key not in key_types():
            others = {own: kept for own, kept in before.arguments.items() if own != name}
            unset = _is_unset(entry_of(self, section), name, value)
            name, value = ARGUMENTS, others if unset else {**others, name: value}
        return replace(self, **{section: replace(before, **{name: value})})

    def flat(self) -> dict[str, Any]:
        """Returns ``{dotted key: value}`` of every key that is there."""
        fixed = {key: attrgetter(key)(self) for key in key_types()}
        own = {
            f"{section}.{name}": value
            for section in ("model", "optimizer")
            for name, value in getattr(self, section).arguments.items()
        }
        return fixed | own

    def to_dict(self) -> dict[str, Any]:
        """Returns nested dictionaries of plain JSON values."""
        tree = json.loads(json.dumps(dataclasses.asdict(self)))
        for section in ("model", "optimizer"):
            tree[section] |= tree[section].pop(ARGUMENTS)
        return tree

    def to_json(self) -> str:
        """Returns the contents of `config.json`."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> Config:
        """Reads what :meth:`to_dict` wrote; missing keys take their defaults, unknown ones are refused."""
        return cls().with_values(flatten(tree))

    def check(self) -> Config:
        """Checks the values against each other, and returns the configuration itself."""
        from discover.lab.experiments.config.check import check_config

        check_config(self)
        return self


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Nested sections as ``{dotted key: value}``.

    >>> flatten({"name": "mine", "training": {"steps": 5}})
    {'name': 'mine', 'training.steps': 5}
    """
    result: dict[str, Any] = {}
    for key, value in tree.items():
        result |= {f"{key}.{name}": one for name, one in value.items()} if isinstance(value, Mapping) else {key: value}
    return result


def _is_unset(entry: Made | None, name: str, value: Any) -> bool:
    """Whether a value is no different from saying nothing."""
    if value is None:
        return True
    argument = None if entry is None else entry.arguments.get(name)
    return _SAME_AS_UNSET.get(name) == value and (argument is None or argument.default == value)
