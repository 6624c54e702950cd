"""From a batch of groups to one loss and one gradient per group."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from discover.checks import (
    check_choice,
    check_cluster_ids,
    check_group_axis,
    check_group_sizes,
    refuse_optax_wrappers,
)
from discover.rule import DiscoverState, GroupTransformation, known_clusters

MODES = ("vmap", "map")


def group_value_and_grad(
    loss_fn: Callable[..., Any], *, has_aux: bool = False, mode: str = "vmap", matrix_dtype: Any = None
) -> Callable[..., Any]:
    """One loss and one gradient per group.

    Args:
      loss_fn: `loss_fn(params, group, *shared)`: the mean loss over one group, a batch with leaves [b, ...].
        With a key it is called as `loss_fn(params, group, *shared, key=group_key)`.
      has_aux: whether `loss_fn` returns `(loss, aux)`.
      mode: "vmap" works on all groups at once; "map" on one after the other, for the least memory.
      matrix_dtype: for a model that computes in this dtype and casts its weights to it first thing: cast parameters of
        two or more dimensions before differentiating, so that their gradients stay in it until the update (half
        the memory traffic in bfloat16, and the same numbers).

    Returns:
      `f(params, batch, *shared, key=None)` with batch leaves [G, b, ...]. It returns losses [G] (with aux:
      `(losses, aux)`, aux leaves [G, ...]) and gradients with leaves [G, ...]. A `key` is split into one per group.

    Raises:
      ValueError: if the mode is unknown or the batch's leaves disagree about G.

    Example:
      >>> import jax.numpy as jnp
      >>> loss = lambda w, x: jnp.mean((x @ w) ** 2)
      >>> losses, grads = group_value_and_grad(loss)(jnp.ones(3), jnp.ones((2, 5, 3)))
      >>> losses.shape, grads.shape
      ((2,), (2, 3))
    """
    check_choice("mode", mode, MODES)
    value_and_grad = jax.value_and_grad(loss_fn, has_aux=has_aux)

    def per_group(params: Any, batch: Any, *shared: Any, key: jax.Array | None = None) -> Any:
        if matrix_dtype is not None:
            params = jax.tree.map(lambda p: p.astype(matrix_dtype) if p.ndim > 1 else p, params)
        num_groups = _num_groups(batch)
        keys = None if key is None else jax.random.split(key, num_groups)

        def one(group, group_key):
            extra = {} if group_key is None else {"key": group_key}
            return value_and_grad(params, group, *shared, **extra)

        if mode == "map":
            return jax.lax.map(lambda args: one(*args), (batch, keys))
        return jax.vmap(one)(batch, keys)

    return per_group


def accumulate_groups(value_and_grad: Callable[..., Any]) -> Callable[..., Any]:
    """Collects the groups of several micro-batches into one update: what `optax.MultiSteps` cannot do.

    Micro-batches run one after the other, so the forward and backward pass need the memory of one. Their groups
    are then handed to the optimizer together; groups of the same cluster count as one larger group.

    Args:
      value_and_grad: a function made by `group_value_and_grad`.

    Returns:
      `f(params, batches, *shared, key=None)` with batch leaves [M, G, b, ...] for M micro-batches; losses [M·G]
      and gradients with leaves [M·G, ...]. Cluster ids [M, G] go to the update as `ids.reshape(-1)`.

    Example:
      >>> import jax.numpy as jnp
      >>> per_group = group_value_and_grad(lambda w, x: jnp.mean((x @ w) ** 2))
      >>> losses, grads = accumulate_groups(per_group)(jnp.ones(3), jnp.ones((4, 2, 5, 3)))
      >>> losses.shape, grads.shape
      ((8,), (8, 3))
    """

    def accumulated(params: Any, batches: Any, *shared: Any, key: jax.Array | None = None) -> Any:
        keys = None if key is None else jax.random.split(key, _num_groups(batches))
        result = jax.lax.map(lambda args: value_and_grad(params, args[0], *shared, key=args[1]), (batches, keys))
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), result)

    return accumulated


def mean_over_groups() -> GroupTransformation:
    """The mean gradient of the batch from one gradient per group: Σ_k b_k ĝ_k / |B|.

    It makes any optax optimizer take the same call as Discover:
    `optax.chain(mean_over_groups(), optax.adam(1e-3))`. Groups of size 0 are ignored, whatever they hold.
    """

    def init(params):
        del params
        return optax.EmptyState()

    def update(updates, state, params=None, *, group_sizes=None, affine=None, **_):
        refuse_optax_wrappers("mean_over_groups")
        num_groups = check_group_axis(updates, params)
        means = mean(updates, None if group_sizes is None else check_group_sizes(group_sizes, num_groups))
        if affine is not None:
            means = jax.tree.map(
                lambda m, o: jnp.asarray(affine.scale, m.dtype) * m + o.astype(m.dtype), means, affine.offset
            )
        return means, state

    def mean(grads, sizes):
        if sizes is None:
            return jax.tree.map(lambda g: jnp.mean(g, axis=0, dtype=_wide(g)), grads)
        sizes = jnp.maximum(sizes, 0).astype(jnp.result_type(float))
        total = jnp.sum(sizes)
        share = sizes / jnp.where(total > 0, total, 1)

        def weighted(g):
            column = share.astype(_wide(g)).reshape(-1, *(1,) * (g.ndim - 1))
            # A group that does not count may hold anything, NaN included.
            return jnp.sum(jnp.where(column > 0, column * g, 0), axis=0)

        return jax.tree.map(weighted, grads)

    return GroupTransformation(init, update)


def freeze() -> GroupTransformation:
    """Leaves parameters as they are: for `optax.partition`, where `optax.set_to_zero` would keep the group axis."""

    def update(updates, state, params=None, **_):
        refuse_optax_wrappers("freeze")
        check_group_axis(updates, params)
        return jax.tree.map(lambda g: jnp.zeros_like(g, shape=g.shape[1:]), updates), state

    return GroupTransformation(lambda params: optax.EmptyState(), update)


def skip_empty_batches(
    inner: optax.GradientTransformationExtraArgs, num_clusters: int | None = None
) -> GroupTransformation:
    """Leaves parameters and state unchanged when a batch has no examples.

    With `num_clusters`, groups whose id is not among them count as groups without examples.
    """

    def update(updates, state, params=None, *, group_sizes=None, cluster_ids=None, **extra):
        refuse_optax_wrappers("an optimizer of this library")
        extra["cluster_ids"] = cluster_ids
        leaves = jax.tree.leaves(updates)
        if leaves and jnp.ndim(leaves[0]) and jnp.shape(leaves[0])[0] == 0:
            return jax.tree.map(lambda g: jnp.zeros_like(g, shape=g.shape[1:]), updates), state
        if num_clusters is not None and cluster_ids is not None and leaves:
            group_sizes = sizes_that_count(updates, params, cluster_ids, group_sizes, num_clusters)
        new_updates, new_state = inner.update(updates, state, params, group_sizes=group_sizes, **extra)
        if group_sizes is None:
            return new_updates, new_state
        active = jnp.any(jnp.asarray(group_sizes) > 0)

        def keep_old(new, old):
            # The rule sees to its buffers itself: a select here would copy those of all N clusters.
            return new if isinstance(new, DiscoverState) else jnp.where(active, new, old)

        state = jax.tree.map(keep_old, new_state, state, is_leaf=lambda node: isinstance(node, DiscoverState))
        return jax.tree.map(lambda u: jnp.where(active, u, 0), new_updates), state

    return GroupTransformation(inner.init, update)


def sizes_that_count(grads: Any, params: Any, cluster_ids: Any, group_sizes: Any, num_clusters: int) -> jax.Array:
    """The groups' sizes, 0 where the cluster is none of the N; 1 for all others where no sizes are given."""
    num_groups = check_group_axis(grads, params)
    ids = check_cluster_ids(cluster_ids, num_groups)
    sizes = jnp.ones(num_groups, jnp.int32) if group_sizes is None else check_group_sizes(group_sizes, num_groups)
    return jnp.where(known_clusters(ids, num_clusters), sizes, 0)


def _wide(array: jax.Array) -> Any:
    return jnp.promote_types(array.dtype, jnp.float32)


def _num_groups(batch: Any) -> int:
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(batch)]
    if not shapes or not all(shapes):
        raise ValueError(f"batch leaves must be arrays with a leading group axis [G, b, ...], got shapes {shapes}")
    counts = {shape[0] for shape in shapes}
    if len(counts) > 1:
        raise ValueError(f"all leaves of a batch must have the same number of groups, got {sorted(counts)}")
    return counts.pop()
