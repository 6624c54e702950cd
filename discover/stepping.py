"""One step of an optimizer: its update, and the sum with the parameters.

optax keeps the two apart, so that the direction is written to memory and read again. Where the direction needs only
to be scaled and subtracted, the kernel that makes it can do that as well: the parameters are moved where they are.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from discover.checks import check_group_axis, is_zero
from discover.groups import sizes_that_count
from discover.rule import GroupTransformation, Moves, moves_in_kernels


def take_step(
    optimizer: optax.GradientTransformation, grads: Any, state: Any, params: Any, **extra: Any
) -> tuple[Any, Any]:
    """The parameters and the state after one step.

    The same as `optimizer.update` and `optax.apply_updates`, to rounding; with `discover` and `discover_qhm` on a GPU
    in less time. The arguments are those of `optimizer.update`. An optimizer around another, such as `optax.chain`,
    takes the ordinary way.

    Example:
      >>> import discover
      >>> tx = discover.discover(0.1, discover.Clusters.uniform(2))
      >>> params = jnp.zeros(3)
      >>> state = tx.init(params)
      >>> params, state = take_step(tx, jnp.ones((2, 3)), state, params, cluster_ids=jnp.array([0, 1]))
    """
    if isinstance(optimizer, GroupTransformation) and optimizer.step is not None:
        return optimizer.step(grads, state, params, **extra)
    return _update_and_add(optimizer, grads, state, params, **extra)


def _update_and_add(
    optimizer: optax.GradientTransformation, grads: Any, state: Any, params: Any, **extra: Any
) -> tuple[Any, Any]:
    updates, state = optax.with_extra_args_support(optimizer).update(grads, state, params, **extra)
    return optax.apply_updates(params, updates), state


def chosen_parameters(mask: Any, params: Any) -> Any:
    """A boolean for each parameter: what a mask says, be it a tree, the upper part of one, a function, or None: all."""
    chosen = mask(params) if callable(mask) else True if mask is None else mask
    return jax.tree.map(lambda on, part: jax.tree.map(lambda _: bool(on), part), chosen, params)


def with_step_in_one(
    optimizer: GroupTransformation,
    rule: GroupTransformation,
    num_clusters: int,
    *,
    learning_rate: Any,
    weight_decay: Any,
    mask: Any,
    l2: Any,
) -> GroupTransformation:
    """The optimizer with a `step` in which the kernels move the parameters, where they can.

    Args:
      optimizer: from `direction_to_optimizer`, whose state is a tuple: the rule's, …, the learning rate's.
      rule: `scale_by_discover`, its direction.
      num_clusters: of the rule.
      learning_rate, weight_decay, mask, l2: those of the optimizer.
    """
    to_step = optax.scale_by_learning_rate(learning_rate)

    def step(grads: Any, state: Any, params: Any, *, cluster_ids: Any = None, group_sizes: Any = None, **extra: Any):
        extra |= {"cluster_ids": cluster_ids, "group_sizes": group_sizes}
        ordinary = cluster_ids is not None and extra.get("affine") is None and not callable(weight_decay)
        if not (ordinary and moves_in_kernels(params, state[0], check_group_axis(grads, params))):
            return _update_and_add(optimizer, grads, state, params, **extra)
        params = jax.tree.map(jnp.asarray, params)
        sizes = sizes_that_count(grads, params, cluster_ids, group_sizes, num_clusters)
        step_along_one: Any
        step_along_one, rate_state = to_step.update(jnp.ones(()), state[-1])
        none = is_zero(l2) and is_zero(weight_decay)
        moves = Moves(l2, weight_decay, -step_along_one, chosen_parameters(None if none else mask, params))
        params, rule_state = rule.update(
            grads, state[0], params, cluster_ids=cluster_ids, group_sizes=sizes, moves=moves
        )
        active = jnp.any(sizes > 0)
        rate_state = jax.tree.map(lambda new, old: jnp.where(active, new, old), rate_state, state[-1])
        return params, (rule_state, *state[1:-1], rate_state)

    stepping = GroupTransformation(optimizer.init, optimizer.update)
    stepping.step = step
    return stepping
