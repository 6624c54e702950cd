"""From a configuration to the compiled programs of a run."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax.typing import DTypeLike

from discover.lab.data import Dataset
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.run.build import member_mode, model_key, optimizer_factory, program_key
from discover.lab.experiments.run.prepare_examples import build_prepare
from discover.lab.models import MODELS, Network
from discover.lab.training.devices import Devices
from discover.lab.training.evaluate import make_evaluate
from discover.lab.training.programs import ModelPrograms, Programs
from discover.lab.training.step import make_step, spread_optimizer


def shared_programs(
    shared: MutableMapping[str, Any],
    config: Config,
    dataset: Dataset,
    network: Network,
    names: Sequence[str],
    probs: Sequence[float],
    devices: Devices,
) -> Programs:
    """The programs of a run, taken from those of earlier runs where they are the same, and added to them."""
    on = f"on {devices.count} devices "
    key = on + program_key(config, names, probs)
    if devices.several:
        key = f"{clusters_per_device(config, devices.count, len(probs))} clusters each {key}"
    if key not in shared:
        model = on + model_key(config)
        if model not in shared:
            shared[model] = _model_programs(config, dataset, network, devices)
        shared[key] = build_programs(config, dataset, network, probs, shared[model])
    return shared[key]


def build_programs(
    config: Config,
    dataset: Dataset,
    network: Network,
    probs: Sequence[float],
    model: ModelPrograms | None = None,
) -> Programs:
    """The programs of a run; learning rates, seeds and lengths are their arguments."""
    model = _model_programs(config, dataset, network, Devices()) if model is None else model
    training, dtype = config.training, config.optimizer.exchange_dtype
    devices, merge_groups = model.devices, not config.optimizer.entry.clustered
    make_optimizer = spread_optimizer(
        optimizer_factory(config, probs),
        devices,
        merge_groups=merge_groups,
        clusters_per_device=clusters_per_device(config, devices.count, len(probs)),
        exchange_dtype=None if dtype is None else jnp.dtype(dtype),
    )
    step = make_step(
        network.apply,
        build_prepare(config, dataset)[0],
        merge_groups=merge_groups,
        group_mode=training.group_mode,
        matrix_dtype=_matrix_dtype(config),
        devices=devices,
    )
    return Programs(model, make_optimizer, step, steps_per_dispatch=training.steps_per_dispatch)


def _model_programs(config: Config, dataset: Dataset, network: Network, devices: Devices) -> ModelPrograms:
    """The programs that do not depend on the optimizer."""
    scale, size = build_prepare(config, dataset)[1], config.training.eval_batch
    evaluate = make_evaluate(network.apply, scale, batch_size=size, devices=devices)
    return ModelPrograms(network.init, evaluate, member_mode=member_mode(config), devices=devices)


def clusters_per_device(config: Config, devices: int, num_clusters: int) -> int:
    """The most clusters that the groups of one device come from in a batch: as many gradients it has to send."""
    batches = config.batches
    each = batches.groups // devices
    if batches.composition == "given":
        return max(len(set(batches.given[first : first + each])) for first in range(0, len(batches.given), each))
    return min(each, num_clusters)


def _matrix_dtype(config: Config) -> DTypeLike | None:
    """Half-precision gradients stay so until the update, where the model casts its weights before anything else."""
    casts_first = MODELS.find(config.model.name).casts_weights_first
    return jnp.dtype(config.model.dtype) if casts_first and config.model.dtype != "float32" else None
