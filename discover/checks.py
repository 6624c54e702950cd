"""Checks that turn a wrong call into one sentence, at construction or at trace time."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer

from discover.clusters import Clusters


def check_unit_interval(name: str, value: Any) -> None:
    """Raises unless `value` is in [0, 1]; traced values cannot be looked at and pass."""
    if isinstance(value, Tracer):
        return
    number = _number(name, value)
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{name} must be in [0, 1], got {number:g}")


def check_not_negative(name: str, value: Any) -> None:
    """Raises unless `value` is finite and at least 0; traced values and schedules pass."""
    if isinstance(value, Tracer) or callable(value):
        return
    number = _number(name, value)
    if not 0.0 <= number < float("inf"):
        raise ValueError(f"{name} must be finite and at least 0, got {number:g}")


def check_at_least(name: str, value: Any, least: float) -> None:
    """Raises unless `value` is at least `least`, infinity among others; traced values pass."""
    if isinstance(value, Tracer):
        return
    number = _number(name, value)
    if not number >= least:
        raise ValueError(f"{name} must be None or at least {least:g}, got {number:g}")


def _number(name: str, value: Any) -> float:
    try:
        if not isinstance(value, str | bytes):  # "0.1" would do here, and fail in the first step
            return float(value)
    except (TypeError, ValueError):
        pass
    raise TypeError(f"{name} must be a number, got {value!r}")


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raises unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def check_buffer_dtype(dtype: Any) -> Any:
    """`dtype` as numpy's, or None; raises unless buffers can be kept in it."""
    if dtype is None:
        return None
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        found = None
    if found is None or not (found == jnp.int8 or jnp.issubdtype(found, jnp.floating)):
        raise ValueError(f"buffer_dtype must be float32, bfloat16, float16, float64, int8 or None, got {dtype!r}")
    return found


def check_clusters(clusters: Any) -> None:
    """Raises unless it is a `Clusters`."""
    if not isinstance(clusters, Clusters):
        raise TypeError(f"clusters must be a discover.Clusters, got {type(clusters).__name__}; try Clusters.uniform(n)")


def check_parameters(params: Any) -> None:
    """Raises unless there are parameters, and every one is an array of floating-point (or complex) numbers."""
    all_masked("parameters", params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        dtype = getattr(leaf, "dtype", None)
        dtype = jnp.result_type(leaf) if isinstance(leaf, float | complex) else dtype
        if dtype is None or not jnp.issubdtype(dtype, jnp.inexact):
            where = jax.tree_util.keystr(path, simple=True, separator="/") or "the tree itself"
            got = type(leaf).__name__ if dtype is None else f"dtype {dtype}"
            raise TypeError(
                f"parameters must be floating-point arrays, got {got} at {where}: set the others apart, with "
                "nnx.split(model, nnx.Param, ...) or eqx.partition(model, eqx.is_inexact_array)"
            )


def all_masked(what: str, tree: Any) -> bool:
    """Whether a wrapper such as `optax.partition` has left nothing in a tree; raises where there never was anything."""
    if jax.tree.leaves(tree):
        return False
    if not jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, optax.MaskedNode)):
        raise ValueError(
            f"there are no {what}, got a {type(tree).__name__} without any array: hand over the tree of floating-point "
            "arrays that is trained, such as nnx.state(model, nnx.Param), and its gradients"
        )
    return True


def is_zero(value: Any) -> bool:
    """Whether a hyperparameter is known to be 0 already when the program is traced."""
    return isinstance(value, int | float) and value == 0


def check_group_sizes(group_sizes: Any, num_groups: int) -> jax.Array:
    """`group_sizes` as an array of length `num_groups`, or an error that says what it should be."""
    sizes = jnp.asarray(group_sizes)
    if sizes.shape != (num_groups,):
        raise ValueError(f"group_sizes must have one entry per group, shape ({num_groups},), got shape {sizes.shape}")
    return sizes


def check_cluster_ids(cluster_ids: Any, num_groups: int) -> jax.Array:
    """`cluster_ids` as an integer array of length `num_groups`, or an error that says what it should be."""
    if cluster_ids is None:
        raise TypeError(
            "cluster_ids is missing: call tx.update(grads, state, params, cluster_ids=ids) "
            "with one cluster id per group (flax's TrainState.apply_gradients takes them and does not hand them on: "
            "the page on models has a TrainState that does)"
        )
    ids = jnp.asarray(cluster_ids)
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise TypeError(f"cluster_ids must be integers, got dtype {ids.dtype}; use jnp.int32")
    if ids.shape != (num_groups,):
        raise ValueError(f"cluster_ids must have one entry per group, shape ({num_groups},), got shape {ids.shape}")
    return ids


def check_group_axis(grads: Any, like: Any | None) -> int:
    """The number of groups G of gradients whose leaves are [G, ...].

    Args:
      grads: gradients with a leading group axis.
      like: a tree of the parameters' shapes, or None when it is not known.

    Raises:
      ValueError: if a leaf lacks the group axis, or leaves disagree about G.
    """
    if all_masked("gradients", grads):
        return 0
    leaves = jax.tree.leaves(grads)
    for leaf in leaves:
        if jnp.ndim(leaf) == 0:
            raise ValueError(
                "gradients must have a leading group axis [G, ...], got a scalar leaf; "
                "compute them with group_value_and_grad"
            )
    if like is not None and jax.tree.structure(grads) != jax.tree.structure(like):
        raise ValueError(
            f"gradients must have the tree structure of the parameters, got {len(leaves)} leaves of gradients for "
            f"{len(jax.tree.leaves(like))} of parameters, or other names"
        )
    num_groups = jnp.shape(leaves[0])[0]
    expected = jax.tree.leaves(like) if like is not None else []
    for i, leaf in enumerate(leaves):
        shape = jnp.shape(leaf)
        if expected and shape[1:] != jnp.shape(expected[i]):
            raise ValueError(
                "gradients must have a leading group axis: a parameter of shape "
                f"{jnp.shape(expected[i])} needs a gradient of shape (G, ...) + that, got {shape}; "
                "compute them with group_value_and_grad (optax.MultiSteps takes the axis away: collect the groups of "
                "several micro-batches with discover.accumulate_groups and update once)"
            )
        if shape[0] != num_groups:
            raise ValueError(f"all gradients must have the same number of groups, got {num_groups} and {shape[0]}")
    return num_groups
