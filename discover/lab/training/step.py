"""One training step for every optimizer: a pure function of parameters, optimizer state and a batch of groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.experimental.layout import Layout, with_layout_constraint

from discover import group_value_and_grad, take_step
from discover.gpu import device as accelerator

if TYPE_CHECKING:
    from discover.lab.training.devices import MeshPlacement

Hyper = dict[str, jax.Array]
"""Hyperparameters by name, as float32 scalars: arguments of the compiled step, never constants in it."""

Prepare = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
"""``prepare(key, images [b, ...], labels [b], cluster_id) -> (x [b, ...], targets [b, num_classes])``."""


class TrainState(NamedTuple):
    """Everything that a step changes. Keys and batches are functions of (seed, step) and need no state."""

    params: Any
    opt_state: Any


class StepBatch(NamedTuple):
    """One step's batch as the sampler draws it; the examples themselves stay in the data set on the device."""

    indices: jax.Array  # int32 [G, b], rows of the data set
    labels: jax.Array  # int32 [G, b], after label noise
    cluster_ids: jax.Array  # int32 [G]
    group_sizes: jax.Array  # int32 [G]; a group's first `size` examples count, 0 is padding


class StepMetrics(NamedTuple):
    """What a step reports: means over the batch's examples."""

    loss: jax.Array  # float32 []
    accuracy: jax.Array  # float32 []


Step = Callable[..., tuple[TrainState, StepMetrics]]
"""``step(state, hyper, key, number, batch, images) -> (state, metrics)``, pure; see :func:`make_step`."""


def make_step(
    apply: Callable[..., jax.Array],
    make_optimizer: Callable[[Hyper], optax.GradientTransformationExtraArgs],
    prepare: Prepare,
    *,
    merge_groups: bool,
    group_mode: str = "vmap",
    matrix_dtype: Any = None,
    placement: MeshPlacement | None = None,
) -> Step:
    """Builds the step that every optimizer shares.

    Gradients are clipped where ``hyper`` has a ``clip_norm``: each gradient that the optimizer is fed is scaled
    down to that global norm. This is each group's gradient, or with ``merge_groups`` the batch's (the ordinary
    clipping), before the optimizer adds its own l2 term.

    Args:
        apply: ``apply(params, x, key) -> logits``.
        make_optimizer: builds the optimizer from traced hyperparameters.
        prepare: scales and augments one group on the device.
        merge_groups: hand the whole batch over as one group. Exact for optimizers that average the groups
            anyway, and cheaper.
        group_mode: `vmap` or `map`, see :func:`discover.group_value_and_grad`.
        matrix_dtype: the dtype in which the gradients of matrices reach the optimizer, see there.
        placement: spreads the groups over several devices, each of which merges its own. The batch then carries its
            examples in place of their indices, and the optimizer clips.

    Returns:
        ``step(state, hyper, key, number, batch, images)``: ``key`` is the member's own, ``number`` counts from
        0, ``images`` is the whole data set on the device.
    """

    def group_loss(params: Any, group: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        x, targets, weights, key = group
        logits = apply(params, x, key[0])
        losses = optax.softmax_cross_entropy(logits, targets)
        right = jnp.argmax(logits, axis=-1) == jnp.argmax(targets, axis=-1)
        count = jnp.maximum(jnp.sum(weights), 1)
        return jnp.sum(losses * weights) / count, jnp.sum(right * weights) / count

    gradients = group_value_and_grad(group_loss, has_aux=True, mode=group_mode, matrix_dtype=matrix_dtype)

    def gradients_of_groups(
        params: Any, batch: StepBatch, images: jax.Array, augment_keys: jax.Array, dropout_keys: jax.Array
    ) -> tuple[Any, Any, jax.Array, jax.Array]:
        num_groups, size = batch.labels.shape
        examples = images[batch.indices] if placement is None else batch.indices
        x, targets = jax.vmap(prepare)(augment_keys, examples, batch.labels, batch.cluster_ids)
        weights = (jnp.arange(size) < batch.group_sizes[:, None]).astype(jnp.float32)
        ids, sizes = batch.cluster_ids, batch.group_sizes
        if merge_groups:
            x, targets, weights = (a.reshape(1, num_groups * size, *a.shape[2:]) for a in (x, targets, weights))
            ids, sizes = jnp.zeros(1, jnp.int32), jnp.sum(sizes, keepdims=True)
        results, grads = gradients(params, (x, targets, weights, dropout_keys))
        return results, grads, ids, sizes

    compute = gradients_of_groups if placement is None else placement.step_over_devices(gradients_of_groups)
    merged = 1 if placement is None else placement.count

    def step(
        state: TrainState,
        hyper: Hyper,
        key: jax.Array,
        number: jax.Array,
        batch: StepBatch,
        images: jax.Array,
    ) -> tuple[TrainState, StepMetrics]:
        num_groups = batch.labels.shape[0]
        augment_key, dropout_key = jax.random.split(jax.random.fold_in(key, number))
        augment_keys = jax.random.split(augment_key, num_groups)
        # One key per group, with an axis of its own so that it has a leading [G] and is not taken for examples.
        dropout_keys = jax.random.split(dropout_key, (merged if merge_groups else num_groups, 1))
        (losses, accuracies), grads, ids, sizes = compute(state.params, batch, images, augment_keys, dropout_keys)
        if "clip_norm" in hyper and placement is None:
            grads = clip_each(grads, hyper["clip_norm"])
        optimizer = make_optimizer(hyper)
        params, opt_state = take_step(
            optimizer, grads, state.opt_state, state.params, cluster_ids=ids, group_sizes=sizes
        )
        share = sizes / jnp.maximum(jnp.sum(sizes), 1)
        metrics = StepMetrics(jnp.sum(share * losses), jnp.sum(share * accuracies))
        if not merge_groups and placement is None and accelerator.runs_kernels():
            params = jax.tree.map(_keep_row_major, params)
        return TrainState(params, opt_state), metrics

    return step


def _keep_row_major(param: jax.Array) -> jax.Array:
    """Keeps XLA from carrying a parameter through the loop in the layout of a convolution.

    The update's kernel reads and writes row-major parameters, or steps that are added to them; others need a copy.
    """
    return with_layout_constraint(param, Layout(major_to_minor=tuple(range(param.ndim))))


def clip_each(grads: Any, largest: jax.Array) -> Any:
    """Scales each group's gradient (leaves [G, ...]) down to a global norm of at most ``largest``."""
    squares = [jnp.sum(jnp.square(g.astype(jnp.float32)), axis=range(1, g.ndim)) for g in jax.tree.leaves(grads)]
    norms = jnp.sqrt(sum(squares))
    scale = jnp.minimum(1.0, largest / jnp.maximum(norms, jnp.finfo(jnp.float32).tiny))
    return jax.tree.map(lambda g: g * scale.reshape(-1, *(1,) * (g.ndim - 1)).astype(g.dtype), grads)
