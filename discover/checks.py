"""Checks that turn a wrong call into one sentence, at construction or at trace time."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer


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


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {value!r}") from None


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raises unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


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
            "with one cluster id per group"
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
    leaves = jax.tree.leaves(grads)
    if not leaves:
        return 0
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
                "compute them with group_value_and_grad"
            )
        if shape[0] != num_groups:
            raise ValueError(f"all gradients must have the same number of groups, got {num_groups} and {shape[0]}")
    return num_groups


def refuse_optax_wrappers(name: str) -> None:
    """Raises a sentence when called from inside `optax.MultiSteps` or a bare `optax.masked`.

    Neither wrapper knows about the group axis, and neither leaves a trace in what it passes on: `MultiSteps`
    averages gradients of different clusters into one, and `masked` hands the gradients of the other
    parameters on with their group axis, which `optax.apply_updates` would then broadcast silently.
    `optax.partition` is built on `masked` but gives every parameter to some transformation, so it is fine.
    The only place where the difference shows is the call stack, and only while tracing.
    """
    callers = []
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("optax."):
            callers.append(frame.f_code.co_qualname.split(".")[0])
        frame = frame.f_back
    for caller in ("apply_if_finite", "conditionally_mask", "conditionally_transform"):
        if caller in callers:
            raise ValueError(
                f"{name} cannot run inside optax.{caller}, which expects updates shaped like the gradients; chain it "
                "after discover.scale_by_discover or discover.mean_over_groups instead of around them"
            )
    if "MultiSteps" in callers:
        raise ValueError(
            f"{name} cannot run inside optax.MultiSteps, which would mix the gradients of different clusters; "
            "collect the groups of several micro-batches with discover.accumulate_groups and update once"
        )
    for caller, above in zip(callers, [*callers[1:], ""]):
        if caller == "masked" and above not in ("partition", "multi_transform"):
            raise ValueError(
                f"{name} cannot run inside optax.masked, which would leave the other gradients with their "
                "group axis; use optax.partition, and give the other parameters discover.freeze() or another "
                "optimizer of this library"
            )
