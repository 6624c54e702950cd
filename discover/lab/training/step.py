"""One training step for every optimizer: a pure function of parameters, optimizer state and a batch of groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import DTypeLike

from discover import group_value_and_grad, take_step
from discover.gpu import device
from discover.lab.data import BatchPlan
from discover.lab.training.devices import AXIS, Devices
from discover.sharding import shard_by_parameter

Hyper = dict[str, jax.Array]
"""Hyperparameters by name, as float32 scalars: arguments of the compiled step, never constants in it."""

MakeOptimizer = Callable[[Hyper], optax.GradientTransformationExtraArgs]
"""Builds the optimizer from traced hyperparameters."""

Prepare = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
"""``prepare(key, images [b, ...], labels [b], cluster_id) -> (x [b, ...], targets [b, num_classes])``.

Where the next byte of a text is learned, targets are [b, L, 256]."""


class TrainState(NamedTuple):
    """Everything that a step changes. Keys and batches are functions of (seed, step) and need no state."""

    params: Any
    opt_state: Any


class StepBatch(NamedTuple):
    """One step's batch as the sampler draws it."""

    examples: Any  # int32 [G, b], rows of the data set on the device; on several devices the images [G, b, ...]
    labels: Any  # int32 [G, b], after label noise
    cluster_ids: Any  # int32 [G]
    group_sizes: Any  # int32 [G]; a group's first `size` examples count, 0 is padding


def draw_batches(plans: Sequence[BatchPlan], first: int, count: int, length: int) -> StepBatch:
    """The batches of ``count`` steps from number ``first`` on, those of the seeds' plans side by side.

    NumPy arrays [length, S, ...]: the last step's batch is repeated, and nobody uses that: one shape, one program.
    """
    drawn = [plan.batches(first, count) for plan in plans]
    repeated = np.minimum(np.arange(length), count - 1)
    return StepBatch(*(np.stack(arrays, axis=1)[repeated] for arrays in zip(*drawn)))


class StepMetrics(NamedTuple):
    """What a step reports: means over the batch's examples."""

    loss: jax.Array  # float32 []
    accuracy: jax.Array  # float32 []


Step = Callable[..., tuple[TrainState, StepMetrics]]
"""See :func:`make_step`."""


def make_step(
    apply: Callable[..., jax.Array],
    prepare: Prepare,
    *,
    merge_groups: bool,
    group_mode: str = "vmap",
    matrix_dtype: DTypeLike | None = None,
    devices: Devices | None = None,
) -> Step:
    """Builds the step that every optimizer shares.

    Args:
        apply: ``apply(params, x, key) -> logits``.
        prepare: scales and augments one group on the device.
        merge_groups: hand the whole batch over as one group. Exact for optimizers that average the groups
            anyway, and cheaper.
        group_mode: `vmap` or `map`, see :func:`discover.group_value_and_grad`.
        matrix_dtype: the dtype in which the gradients of matrices reach the optimizer, see there.
        devices: over which the groups are spread, each merging its own; None: one device.

    Returns:
        ``step(optimizer, state, key, number, batch, images, clip_norm)``: ``key`` is the member's own, ``number``
        counts from 0, ``images`` is the whole data set on the device. With ``clip_norm`` each gradient that the
        optimizer is fed is scaled down to that global norm: each group's, or with ``merge_groups`` the batch's (the
        ordinary clipping), before the optimizer adds its own l2 term. See :func:`spread_optimizer` for several devices.
    """
    devices = Devices() if devices is None else devices
    several = devices.several

    def group_loss(params: Any, group: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        x, targets, weights, key = group
        logits = apply(params, x, key[0])
        losses = by_example(optax.softmax_cross_entropy(logits, targets))
        right = by_example(jnp.argmax(logits, axis=-1) == jnp.argmax(targets, axis=-1))
        count = jnp.maximum(jnp.sum(weights), 1)
        return jnp.sum(losses * weights) / count, jnp.sum(right * weights) / count

    gradients = group_value_and_grad(group_loss, has_aux=True, mode=group_mode, matrix_dtype=matrix_dtype)

    @devices.each_with_its_groups
    def gradients_of_groups(
        params: Any, images: jax.Array, batch: StepBatch, augment_keys: jax.Array, dropout_keys: jax.Array
    ) -> tuple[Any, Any, jax.Array, jax.Array]:
        num_groups, size = batch.labels.shape
        examples = batch.examples if several else images[batch.examples]
        x, targets = jax.vmap(prepare)(augment_keys, examples, batch.labels, batch.cluster_ids)
        weights = (jnp.arange(size) < batch.group_sizes[:, None]).astype(jnp.float32)
        ids, sizes = batch.cluster_ids, batch.group_sizes
        if merge_groups:
            x, targets, weights = (a.reshape(1, num_groups * size, *a.shape[2:]) for a in (x, targets, weights))
            ids, sizes = jnp.zeros(1, jnp.int32), jnp.sum(sizes, keepdims=True)
        results, grads = gradients(params, (x, targets, weights, dropout_keys))
        return results, grads, ids, sizes

    def step(
        optimizer: optax.GradientTransformationExtraArgs,
        state: TrainState,
        key: jax.Array,
        number: jax.Array,
        batch: StepBatch,
        images: jax.Array,
        clip_norm: jax.Array | None = None,
    ) -> tuple[TrainState, StepMetrics]:
        num_groups = batch.labels.shape[0]
        augment_key, dropout_key = jax.random.split(jax.random.fold_in(key, number))
        augment_keys = jax.random.split(augment_key, num_groups)
        # One key per group, with an axis of its own so that it has a leading [G] and is not taken for examples.
        dropout_keys = jax.random.split(dropout_key, (devices.count if merge_groups else num_groups, 1))
        (losses, accuracies), grads, ids, sizes = gradients_of_groups(
            state.params, images, batch, augment_keys, dropout_keys
        )
        if clip_norm is not None and not several:
            grads = clip_each(grads, clip_norm)
        params, opt_state = take_step(
            optimizer, grads, state.opt_state, state.params, cluster_ids=ids, group_sizes=sizes
        )
        if not merge_groups and not several:
            params = device.row_major(params)
        share = sizes / jnp.maximum(jnp.sum(sizes), 1)
        metrics = StepMetrics(jnp.sum(share * losses), jnp.sum(share * accuracies))
        return TrainState(params, opt_state), metrics

    return step


def by_example(values: jax.Array) -> jax.Array:
    """One number for each example, [b]: where there is one for each byte of a text, [b, L], their mean."""
    return values if values.ndim == 1 else jnp.mean(values, axis=1)


def spread_optimizer(
    make_optimizer: MakeOptimizer,
    devices: Devices,
    *,
    merge_groups: bool,
    clusters_per_device: int | None = None,
    exchange_dtype: DTypeLike | None = None,
) -> MakeOptimizer:
    """The same optimizers for these devices: on several with their state in slices.

    Those also clip, since only they see the mean of the batch.
    """
    if not devices.several:
        return make_optimizer

    def make(hyper: Hyper) -> optax.GradientTransformationExtraArgs:
        inner = make_optimizer(hyper)

        def clipped(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
            return inner.update(clip_each(updates, hyper["clip_norm"]), state, params, **extra)

        chosen = optax.GradientTransformationExtraArgs(inner.init, clipped) if "clip_norm" in hyper else inner
        # Clipping is of each group's gradient: groups must not be averaged before.
        merged = None if merge_groups or "clip_norm" in hyper else clusters_per_device
        return shard_by_parameter(
            chosen,
            devices.mesh,
            data_axis=AXIS,
            exchange="mean" if merge_groups else "groups",
            clusters_per_device=merged,
            exchange_dtype=exchange_dtype,
        )

    return make


def clip_each(grads: Any, largest: jax.Array) -> Any:
    """Scales each group's gradient (leaves [G, ...]) down to a global norm of at most ``largest``."""
    squares = [jnp.sum(jnp.square(g.astype(jnp.float32)), axis=range(1, g.ndim)) for g in jax.tree.leaves(grads)]
    norms = jnp.sqrt(sum(squares))
    scale = jnp.minimum(1.0, largest / jnp.maximum(norms, jnp.finfo(jnp.float32).tiny))
    return jax.tree.map(lambda g: g * scale.reshape(-1, *(1,) * (g.ndim - 1)).astype(g.dtype), grads)
