"""From a batch of groups to one loss and one gradient per group."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import DTypeLike

from discover.checks import all_masked, check_choice, check_group_axis, check_group_sizes, check_parameters
from discover.context import NO_CONTEXT, GroupTransformation, with_offset
from discover.direction import wide_dtype

MODES = ("vmap", "map")
CHANGED_MODEL = (
    "the loss function changes a model from outside of it, as dropout does with its random state: work on a copy, "
    "nnx.merge(graphdef, params, rest, copy=True), and nnx.reseed it with the group's key (docs/models.md, Dropout)"
)


def group_value_and_grad(
    loss_fn: Callable[..., Any], *, has_aux: bool = False, mode: str = "vmap", matrix_dtype: DTypeLike | None = None
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
      ValueError: if the mode is unknown, there are no parameters, or the batch's leaves disagree about G.
      TypeError: if a parameter is no floating-point array.

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
        check_parameters(params)
        if matrix_dtype is not None:
            params = jax.tree.map(lambda p: p.astype(matrix_dtype) if jnp.ndim(p) > 1 else p, params)
        num_groups = _num_groups(batch)
        keys = None if key is None else jax.random.split(key, num_groups)

        def one(group, group_key):
            extra = {} if group_key is None else {"key": group_key}
            return value_and_grad(params, group, *shared, **extra)

        try:
            return jax.lax.map(lambda args: one(*args), (batch, keys)) if mode == "map" else jax.vmap(one)(batch, keys)
        except Exception as error:
            if type(error).__name__ == "TraceContextError":  # flax nnx, which this library does not import
                error.add_note(CHANGED_MODEL)
            raise

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

    def update(updates, state, params=None, *, group_sizes=None, context=NO_CONTEXT, **_):
        if all_masked("gradients", updates):
            return updates, state
        num_groups = check_group_axis(updates, params)
        means = mean(updates, None if group_sizes is None else check_group_sizes(group_sizes, num_groups))
        if context.offset is None:
            return means, state
        vectors = jax.tree.structure(means).flatten_up_to(context.offset.vector)
        leaves = [
            m if vector is None else with_offset(context.offset._replace(vector=vector), m)
            for m, vector in zip(jax.tree.leaves(means), vectors, strict=True)
        ]
        return jax.tree.unflatten(jax.tree.structure(means), leaves), state

    def mean(grads, sizes):
        if has_no_groups(grads):
            return without_groups(grads)
        if sizes is None:
            return jax.tree.map(lambda g: jnp.mean(g, axis=0, dtype=wide_dtype(g)), grads)
        sizes = jnp.maximum(sizes, 0).astype(jnp.result_type(float))
        total = jnp.sum(sizes)
        share = sizes / jnp.where(total > 0, total, 1)

        def weighted(g):
            column = share.astype(wide_dtype(g)).reshape(-1, *(1,) * (g.ndim - 1))
            # A group that does not count may hold anything, NaN included.
            return jnp.sum(jnp.where(column > 0, column * g, 0), axis=0)

        return jax.tree.map(weighted, grads)

    return GroupTransformation(init, update)


def freeze() -> GroupTransformation:
    """Leaves parameters as they are: for `optax.partition`, where `optax.set_to_zero` would keep the group axis."""

    def update(updates, state, params=None, **_):
        check_group_axis(updates, params)
        return without_groups(updates), state

    return GroupTransformation(lambda params: optax.EmptyState(), update)


def has_no_groups(grads: Any) -> bool:
    """Whether there is nothing to do: no groups, or no parameters that are not masked."""
    if all_masked("gradients", grads):
        return True
    first = jax.tree.leaves(grads)[0]
    return jnp.ndim(first) > 0 and jnp.shape(first)[0] == 0


def without_groups(grads: Any) -> Any:
    """Zeros shaped like one group's gradients."""
    return jax.tree.map(lambda g: jnp.zeros_like(g, shape=g.shape[1:]), grads)


def _num_groups(batch: Any) -> int:
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(batch)]
    if not shapes or not all(shapes):
        raise ValueError(f"batch leaves must be arrays with a leading group axis [G, b, ...], got shapes {shapes}")
    counts = {shape[0] for shape in shapes}
    if len(counts) > 1:
        raise ValueError(f"all leaves of a batch must have the same number of groups, got {sorted(counts)}")
    return counts.pop()
