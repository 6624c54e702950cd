"""What a run is: a frozen, typed, JSON-able configuration, and the ``key=value`` language that changes it.

Nothing here imports jax, so the command line can check a configuration before anything heavy is loaded.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, get_type_hints

from discover.lab.experiments.config.sections import (
    CLUSTERED,
    HYPERPARAMETERS,
    OPTIMIZERS,
    REQUIRED,
    BatchConfig,
    ClustersConfig,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    TrainingConfig,
)
from discover.lab.experiments.config.values import ConfigError, at_least, check_value, choose, in_range, parse_value

__all__ = [
    "CLUSTERED",
    "HYPERPARAMETERS",
    "OPTIMIZERS",
    "REQUIRED",
    "BatchConfig",
    "ClustersConfig",
    "Config",
    "ConfigError",
    "DataConfig",
    "ModelConfig",
    "OptimizerConfig",
    "TrainingConfig",
    "check_hyperparameter",
    "choose",
    "key_types",
]

MOST_STEPS = 10**8
"""A run keeps a learning rate for each step, so that more of them could fill the memory."""


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
        """Applies ``key=value`` texts in order, as typed after ``--set``.

        Raises:
            ConfigError: an unknown key (with the nearest one), or a value of the wrong type.
        """
        result = self
        for text in assignments:
            key, sep, value = text.partition("=")
            if not sep or not key.strip():
                raise ConfigError(f"expected key=value, got {text!r}")
            hint = key_types().get(key.strip())
            if hint is None:
                raise _unknown_key(key.strip())
            result = result.with_values({key.strip(): parse_value(key.strip(), value.strip(), hint)})
            # One length: giving steps takes back epochs, and the other way round.
            if key.strip() == "training.epochs" and result.training.epochs is not None:
                result = result.with_values({"training.steps": None})
            if key.strip() == "training.steps" and result.training.steps is not None:
                result = result.with_values({"training.epochs": None})
        return result

    def with_values(self, values: Mapping[str, Any]) -> Config:
        """Replaces fields by dotted key with Python values, type-checked: ``{"data.label_noise": 0.4}``."""
        result = self
        for key, value in values.items():
            hint = key_types().get(key)
            if hint is None:
                raise _unknown_key(key)
            checked = check_value(key, value, hint)
            section, _, name = key.rpartition(".")
            if section:
                result = replace(result, **{section: replace(getattr(result, section), **{name: checked})})
            else:
                result = replace(result, **{name: checked})
        return result

    def flat(self) -> dict[str, Any]:
        """Returns ``{dotted key: value}`` of every field."""
        return {key: _get(self, key) for key in key_types()}

    def to_dict(self) -> dict[str, Any]:
        """Returns nested dictionaries of plain JSON values."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    def to_json(self) -> str:
        """Returns the contents of `config.json`."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> Config:
        """Reads what :meth:`to_dict` wrote; missing fields take their defaults, unknown ones are refused."""
        return cls().with_values(_flatten(tree))

    @classmethod
    def from_json(cls, text: str) -> Config:
        """Reads what :meth:`to_json` wrote."""
        try:
            tree = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"not a JSON configuration: {error}") from None
        if not isinstance(tree, dict):
            raise ConfigError(f"a configuration is a JSON object, got {type(tree).__name__}")
        return cls.from_dict(tree)

    def diff(self, other: Config) -> dict[str, tuple[Any, Any]]:
        """Returns ``{dotted key: (mine, theirs)}`` of the fields that differ."""
        mine, theirs = self.flat(), other.flat()
        return {key: (mine[key], theirs[key]) for key in mine if mine[key] != theirs[key]}

    def check(self) -> Config:
        """Checks the values against each other, and returns the configuration itself."""
        choose("optimizer", self.optimizer.name, OPTIMIZERS)
        allowed = OPTIMIZERS[self.optimizer.name]
        for name in HYPERPARAMETERS:
            value = getattr(self.optimizer, name)
            if value is None:
                continue
            if name not in (*allowed, "learning_rate", "weight_decay", "l2", "clip_norm"):
                has = f"it has {', '.join(allowed)}" if allowed else "it has none of its own"
                raise ConfigError(f"optimizer {self.optimizer.name!r} has no {name} (got {value}); {has}")
            check_hyperparameter(name, value)
        for name in REQUIRED.get(self.optimizer.name, ()):
            if getattr(self.optimizer, name) is None:
                raise ConfigError(f"optimizer {self.optimizer.name!r} needs optimizer.{name}")
        data, batches, training, clusters = self.data, self.batches, self.training, self.clusters
        in_range("data.validation", data.validation, 0, 1, upper_open=True)
        in_range("data.label_noise", data.label_noise, 0, 1)
        at_least("data.padding", data.padding, 0)
        if data.crop_size is not None:
            at_least("data.crop_size", data.crop_size, 1)
            if data.padding:
                raise ConfigError("data.crop_size and data.padding are two ways to crop; leave one of them out")
        if not data.mix_alpha > 0:
            raise ConfigError(f"data.mix_alpha must be above 0, got {data.mix_alpha}")
        if data.mix != "none" and clusters.by == "augmentations":
            raise ConfigError(f"clusters.by=augmentations decides the mixing itself, got data.mix={data.mix}")
        at_least("batches.groups", batches.groups, 1)
        at_least("batches.group_size", batches.group_size, 1)
        at_least("clusters.number", clusters.number, 1)
        for kind in ("column", "path"):
            by = "file" if kind == "path" else kind
            if clusters.by == by and getattr(clusters, kind) is None:
                raise ConfigError(f"clusters.by={by} needs clusters.{kind}")
        if (batches.composition == "given") != bool(batches.given):
            raise ConfigError(
                "batches.given goes with batches.composition=given, "
                f"got composition={batches.composition} and given={list(batches.given)}"
            )
        if len(batches.given) % batches.groups:
            raise ConfigError(
                f"batches.given needs a cluster id for each of the {batches.groups} groups, or for those of several "
                f"batches, got {len(batches.given)}"
            )
        if clusters.by == "workers" and data.shared:
            raise ConfigError("clusters.by=workers goes with data.shared=false: each worker's data is its cluster")
        if clusters.by == "augmentations" and batches.composition == "shuffled":
            raise ConfigError("clusters.by=augmentations has no shuffled batches; use batches.composition=random")
        for name in ("depth", "width"):
            value = getattr(self.model, name)
            if value is not None:
                at_least(f"model.{name}", value, 0 if name == "depth" else 1)
        if self.model.dropout is not None:
            in_range("model.dropout", self.model.dropout, 0, 1, upper_open=True)
        if (training.steps is None) == (training.epochs is None):
            raise ConfigError(
                "give one of training.steps and training.epochs and set the other to none, "
                f"got steps={training.steps}, epochs={training.epochs}"
            )
        if training.steps is not None:
            at_least("training.steps", training.steps, 1)
            check_length(training.steps)
        if training.epochs is not None and not 0 < training.epochs < math.inf:  # also refuses nan
            raise ConfigError(f"training.epochs must be above 0 and finite, got {training.epochs}")
        for name in ("warmup_steps", "eval_every", "track_variance", "checkpoint_every"):
            at_least(f"training.{name}", getattr(training, name), 0)
        for name in ("steps_per_dispatch", "log_every", "eval_batch", "keep"):
            at_least(f"training.{name}", getattr(training, name), 1)
        if training.together is not None:
            at_least("training.together", training.together, 1)
        if not training.seeds:
            raise ConfigError("training.seeds needs at least one seed, got none")
        if len(set(training.seeds)) != len(training.seeds):
            raise ConfigError(f"training.seeds must differ from each other, got {list(training.seeds)}")
        for seed in training.seeds:
            in_range("training.seeds", seed, 0, 2**31 - 1)
        return self


def check_length(steps: int) -> int:
    """Returns the number of steps; raises :class:`ConfigError` if there are more than :data:`MOST_STEPS`."""
    if steps > MOST_STEPS:
        raise ConfigError(f"a run has at most {MOST_STEPS} steps, got {steps}: lower training.steps or training.epochs")
    return steps


def check_hyperparameter(name: str, value: float) -> None:
    """Raises :class:`ConfigError` if an optimizer's hyperparameter has a value that cannot be."""
    if not math.isfinite(value):
        raise ConfigError(f"optimizer.{name} must be finite, got {value}")
    if name in ("learning_rate", "weight_decay", "l2", "clip_norm"):
        if value < 0:
            raise ConfigError(f"optimizer.{name} must be at least 0, got {value}")
    elif name in ("beta", "beta1", "beta2"):
        in_range(f"optimizer.{name}", value, 0, 1, upper_open=True)
    elif name == "nu":
        in_range("optimizer.nu", value, 0, 1)
    elif name == "tail_fraction":
        if value < 1:
            raise ConfigError(f"optimizer.tail_fraction must be at least 1, got {value}")
    elif value <= 0:
        raise ConfigError(f"optimizer.{name} must be above 0, got {value}")


@functools.cache
def key_types() -> Mapping[str, Any]:
    """Returns ``{dotted key: type hint}`` of every field of :class:`Config`."""
    result: dict[str, Any] = {}
    for name, hint in get_type_hints(Config).items():
        if is_dataclass(hint):
            for sub, sub_hint in get_type_hints(hint).items():
                result[f"{name}.{sub}"] = sub_hint
        else:
            result[name] = hint
    return types.MappingProxyType(result)


def _get(config: Config, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def _flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    sections = {f.name for f in fields(Config) if f.name != "name"}
    result: dict[str, Any] = {}
    for key, value in tree.items():
        if key in sections and isinstance(value, Mapping):
            result.update({f"{key}.{name}": item for name, item in value.items()})
        else:
            result[key] = value
    return result


def _unknown_key(key: str) -> ConfigError:
    keys = list(key_types())
    if key in ("lr", "optimizer.lr"):
        return ConfigError(f"unknown key {key!r}: did you mean 'optimizer.learning_rate'?")
    tails = [k for k in keys if k.rpartition(".")[2] == key.rpartition(".")[2]]
    near = tails[:1] or difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
    if not near:
        by_tail = {k.rpartition(".")[2]: k for k in reversed(keys)}
        near = [by_tail[t] for t in difflib.get_close_matches(key.rpartition(".")[2], by_tail, n=1, cutoff=0.6)]
    hint = f"did you mean {near[0]!r}?" if near else f"keys look like {keys[1]!r}; there are {len(keys)}"
    return ConfigError(f"unknown key {key!r}: {hint}")
