"""Which values of a configuration cannot be, on their own or beside each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from discover.lab.experiments.config.values import ConfigError, at_least, in_range
from discover.registry import Made

if TYPE_CHECKING:
    from discover.lab.experiments.config.config import Config
    from discover.lab.experiments.config.sections import (
        Argument,
        BatchConfig,
        DataConfig,
        OptimizerConfig,
        TrainingConfig,
    )

MOST_STEPS = 10**8
"""A run keeps a learning rate for each step, so that more of them could fill the memory."""
MOST_EXAMPLES = 2**24
"""Of a batch: the numbers of its examples are drawn before anything else."""
MOST_LAYERS = 2000
"""Of a network, each of which is traced before its size is known."""


def check_config(config: Config) -> None:
    """Raises a one-line error for what cannot be: :class:`ConfigError`, or one that names the nearest name."""
    from discover.lab.models import MODELS

    _check_arguments("model", MODELS.find(config.model.name), config.model.arguments)
    depth = config.model.arguments.get("depth", 0)
    if isinstance(depth, int) and depth > MOST_LAYERS:
        raise ConfigError(f"model.depth must be at most {MOST_LAYERS}, got {depth}")
    _check_arguments("optimizer", config.optimizer.entry, config.optimizer.arguments)
    check_optimizer(config.optimizer)
    _check_names(config)
    _check_data(config.data)
    _check_batches(config.batches)
    _check_clusters(config)
    _check_training(config.training)


def check_length(steps: int) -> int:
    """Returns the number of steps; raises :class:`ConfigError` if there are more than :data:`MOST_STEPS`."""
    if steps > MOST_STEPS:
        raise ConfigError(f"a run has at most {MOST_STEPS} steps, got {steps}: lower training.steps or training.epochs")
    return steps


def check_optimizer(optimizer: OptimizerConfig) -> None:
    """Raises :class:`ConfigError` for values of hyperparameters that cannot be: the optimizer itself is asked."""
    from discover import Clusters

    entry = optimizer.entry
    for name, value in optimizer.numbers().items():
        if not math.isfinite(value):
            raise ConfigError(f"optimizer.{name} must be finite, got {value}")
    at_least("optimizer.learning_rate", optimizer.learning_rate, 0)
    at_least("optimizer.clip_norm", optimizer.clip_norm, 0)
    for name, value in optimizer.arguments.items():
        if name.endswith("dtype") and name != "buffer_dtype":  # of which the optimizer itself knows which will do
            _check_dtype(f"optimizer.{name}", value)
    given = {"clusters": Clusters.uniform(1)} if entry.clustered else {}
    if optimizer.decay != "all" and "mask" not in entry.parameters:
        raise ConfigError(f"optimizer {entry.name!r} takes no mask, so that optimizer.decay must be all")
    for key, argument in entry.by_layer.items():
        if getattr(optimizer, key) is not None and argument not in entry.parameters:
            raise ConfigError(f"optimizer {entry.name!r} takes no {argument}: leave optimizer.{key} unset")
    try:
        entry.make(lambda step: optimizer.learning_rate, **given, **optimizer.arguments)
    except (TypeError, ValueError) as error:
        text = " ".join(str(error).split())
        named = text.partition(" ")[0] in entry.arguments
        raise ConfigError(f"optimizer.{text}" if named else f"optimizer {entry.name!r}: {text}") from None


def _check_dtype(key: str, value: Argument) -> None:
    import jax.numpy as jnp

    try:
        jnp.dtype(str(value))
    except TypeError:
        raise ConfigError(f"{key} must be a dtype such as float32 or bfloat16, got {value!r}") from None


def _check_arguments(section: str, entry: Made, arguments: Mapping[str, Argument]) -> None:
    for name, value in arguments.items():
        if name not in entry.types:
            has = f"it has {', '.join(entry.types)}" if entry.types else "it has none of its own"
            raise ConfigError(f"{section} {entry.name!r} has no {name} (got {value}); {has}")
    for name in entry.required:
        if name not in arguments:
            raise ConfigError(f"{section} {entry.name!r} needs {section}.{name}")


def _check_names(config: Config) -> None:
    from discover.lab.data import CLUSTERINGS, SOURCES

    for entry in (SOURCES.find(config.data.source), CLUSTERINGS.find(config.clusters.by)):
        entry.make  # noqa: B018  # a module that is not there is told here


def _check_data(data: DataConfig) -> None:
    in_range("data.validation", data.validation, 0, 1, upper_open=True)
    in_range("data.label_noise", data.label_noise, 0, 1)
    at_least("data.padding", data.padding, 0)
    if data.crop_size is not None:
        at_least("data.crop_size", data.crop_size, 1)
        if data.padding:
            raise ConfigError("data.crop_size and data.padding are two ways to crop; leave one of them out")
    if not data.mix_alpha > 0:
        raise ConfigError(f"data.mix_alpha must be above 0, got {data.mix_alpha}")


def _check_batches(batches: BatchConfig) -> None:
    at_least("batches.groups", batches.groups, 1)
    at_least("batches.group_size", batches.group_size, 1)
    if (size := batches.groups * batches.group_size) > MOST_EXAMPLES:
        raise ConfigError(
            f"a batch has at most {MOST_EXAMPLES} examples, got {size}: lower batches.groups or group_size"
        )
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


def _check_clusters(config: Config) -> None:
    data, clusters, kind = config.data, config.clusters, config.clusters.entry
    at_least("clusters.number", clusters.number, 1)
    for name in kind.needs:
        if getattr(clusters, name, name) is None:
            raise ConfigError(f"clusters.by={clusters.by} needs clusters.{name}")
    if kind.one_per_worker and data.shared:
        raise ConfigError(f"clusters.by={clusters.by} goes with data.shared=false: each worker's data is its cluster")
    if kind.augments and data.mix != "none":
        raise ConfigError(f"clusters.by={clusters.by} decides the mixing itself, got data.mix={data.mix}")
    if kind.augments and config.batches.composition == "shuffled":
        raise ConfigError(f"clusters.by={clusters.by} has no shuffled batches; use batches.composition=random")


def _check_training(training: TrainingConfig) -> None:
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
