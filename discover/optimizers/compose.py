"""From a direction to an optimizer: the penalty before it, what is done to it, decay, learning rate, the empty batch.

All optimizers take `tx.update(grads, state, params, cluster_ids=ids, group_sizes=sizes)` with one gradient per group;
the plain ones average the groups first. Every numeric hyperparameter may be a traced value, and a factory may be
called inside `jax.jit` or `jax.vmap`, so that one compiled program serves a whole grid of learning rates.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from discover.checks import (
    check_cluster_ids,
    check_group_axis,
    check_group_sizes,
    check_not_negative,
    check_parameters,
    is_zero,
)
from discover.context import NO_CONTEXT, GroupTransformation, Move, Moved, Offset, Scalar, displacement
from discover.groups import has_no_groups, without_groups
from discover.nonfinite import skipping_nonfinite
from discover.rule import known_clusters

Mask = Any | Callable[[optax.Params], Any] | None
"""Which parameters: a tree of booleans, the upper part of one, a function from the parameters to one, or None: all."""


class OptimizerState(NamedTuple):
    """What an optimizer remembers."""

    direction: Any  # of what makes a direction of the groups' gradients
    then: tuple[Any, ...]  # of what is done to the direction
    steps: jax.Array  # int32 [], steps taken


def optimizer_from(
    direction: GroupTransformation,
    *then: optax.GradientTransformation,
    learning_rate: optax.ScalarOrSchedule,
    weight_decay: optax.ScalarOrSchedule,
    mask: Mask,
    l2: Scalar,
    num_clusters: int | None = None,
    skip_nonfinite: bool = False,
) -> GroupTransformation:
    """θ ← θ − μ_t·(d + λθ), where d is the direction of ĝ_k + λ₂θ and `then` is done to it.

    Args:
      direction: from groups to a direction. Groups of size 0 change nothing of its state.
      then: done to the direction, in this order; they do not see groups.
      learning_rate: μ, a number or a schedule of the step.
      weight_decay: λ, a number or a schedule of the step.
      mask: which parameters have `weight_decay` and `l2`.
      l2: λ₂.
      num_clusters: N for an optimizer with clusters; groups of other clusters count as groups without examples.
      skip_nonfinite: groups whose gradient is not finite do, too.
    """
    check_not_negative("learning_rate", learning_rate)
    check_not_negative("weight_decay", weight_decay)
    done_to_it = [optax.with_extra_args_support(one) for one in then]

    def init(params):
        check_parameters(params)
        return OptimizerState(
            direction.init(params), tuple(one.init(params) for one in done_to_it), jnp.zeros((), jnp.int32)
        )

    def update(updates, state, params=None, *, cluster_ids=None, group_sizes=None, context=NO_CONTEXT, **extra):
        if has_no_groups(updates):
            return without_groups(updates), state
        if num_clusters is not None and cluster_ids is not None:
            group_sizes = sizes_that_count(updates, params, cluster_ids, group_sizes, num_clusters)
        extra |= {"cluster_ids": cluster_ids, "group_sizes": group_sizes}
        step_size, decay = at_step(learning_rate, state.steps), at_step(weight_decay, state.steps)
        decays = None if is_zero(weight_decay) else each(mask, _needed("weight_decay", params), decay)
        if context.answer_moved and not done_to_it:
            decay_of_each = each(mask, params, None) if decays is None else decays
            context = context._replace(move=Move(params, step_size, decay_of_each))

        answer, direction_state = direction.update(
            updates, state.direction, params, context=context._replace(answer_moved=False), **extra
        )
        then_states = []
        for one, its_state in zip(done_to_it, state.then, strict=True):
            answer, its_state = one.update(answer, its_state, params, context=context, **extra)
            then_states.append(its_state)
        steps: Any = optax.safe_increment(state.steps)
        moved = isinstance(answer, Moved)
        if not moved:
            answer = _displacements(answer, params, step_size, decays)
            answer = unless_empty(group_sizes, answer, jax.tree.map(jnp.zeros_like, answer))
        rest = unless_empty(group_sizes, (tuple(then_states), steps), state[1:])
        return answer, OptimizerState(direction_state, *rest)

    return skipping_nonfinite(with_penalty(GroupTransformation(init, update), l2, mask), skip_nonfinite)


def with_penalty(inner: GroupTransformation, l2: Scalar, mask: Mask) -> GroupTransformation:
    """Adds λ₂θ to every group's gradient, without forming the sums; nothing where λ₂ is 0."""
    if callable(l2):
        raise TypeError("l2 must be a number, got a function; weight_decay takes a schedule")
    check_not_negative("l2", l2)
    if is_zero(l2):
        return inner

    def update(updates, state, params=None, *, context=NO_CONTEXT, **extra):
        offset = _with_penalty(context.offset, _needed("l2", params), l2, mask)
        return inner.update(updates, state, params, context=context._replace(offset=offset), **extra)

    return GroupTransformation(inner.init, update)


def at_step(number: optax.ScalarOrSchedule, count: jax.Array) -> Any:
    """A number, or what a schedule says at a step."""
    return number(count) if callable(number) else number


def sizes_that_count(grads: Any, params: Any, cluster_ids: Any, group_sizes: Any, num_clusters: int) -> jax.Array:
    """The groups' sizes, 0 where the cluster is none of the N; 1 for all others where no sizes are given."""
    num_groups = check_group_axis(grads, params)
    ids = check_cluster_ids(cluster_ids, num_groups)
    sizes = jnp.ones(num_groups, jnp.int32) if group_sizes is None else check_group_sizes(group_sizes, num_groups)
    return jnp.where(known_clusters(ids, num_clusters), sizes, 0)


def unless_empty(group_sizes: Any, new: Any, old: Any) -> Any:
    """The new tree, or the old one after a batch whose groups have no examples."""
    if group_sizes is None:
        return new
    counts = jnp.any(jnp.asarray(group_sizes) > 0)
    return jax.tree.map(lambda after, before: jnp.where(counts, after, before), new, old)


def _with_penalty(offset: Offset | None, params: Any, l2: Scalar, mask: Mask) -> Offset:
    """The offset with λ₂θ added for the parameters that the mask chooses."""
    treedef = jax.tree.structure(params)
    leaves, chosen = jax.tree.leaves(params), treedef.flatten_up_to(each(mask, params, True))
    if offset is None:
        return Offset(1.0, l2, treedef.unflatten([p if on else None for p, on in zip(leaves, chosen)]))
    scale, factor, vector = offset
    vectors = [factor * v + (l2 * p if on else 0.0) for v, p, on in zip(treedef.flatten_up_to(vector), leaves, chosen)]
    return Offset(scale, 1.0, treedef.unflatten(vectors))


def each(mask: Mask, params: Any, value: Any) -> Any:
    """`value` for each parameter that the mask chooses, None for the others."""
    chosen = mask(params) if callable(mask) else True if mask is None else mask
    return jax.tree.map(lambda on, part: jax.tree.map(lambda _: value if on else None, part), chosen, params)


def _displacements(direction: Any, params: Any, step_size: Any, decays: Any) -> Any:
    if decays is None:
        return jax.tree.map(lambda d: displacement(d, None, step_size, None), direction)
    treedef = jax.tree.structure(direction)
    each = zip(jax.tree.leaves(direction), treedef.flatten_up_to(params), treedef.flatten_up_to(decays), strict=True)
    return treedef.unflatten([displacement(d, param, step_size, decay) for d, param, decay in each])


def _needed(name: str, params: Any) -> Any:
    if params is None:
        raise ValueError(f"{name} needs the parameters: call tx.update(grads, state, params, ...)")
    return params
