"""One step of an optimizer: its update, and the sum with the parameters.

optax keeps the two apart, so that the direction is written to memory and read again. Where the direction needs only
to be scaled and subtracted, the kernel that makes it can do that as well: the parameters are moved where they are.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from discover.context import NO_CONTEXT, Context, GroupTransformation, Moved


def take_step(
    optimizer: optax.GradientTransformation,
    grads: optax.Updates,
    state: optax.OptState,
    params: optax.Params,
    *,
    context: Context = NO_CONTEXT,
    **extra: Any,
) -> tuple[optax.Params, optax.OptState]:
    """The parameters and the state after one step.

    The same as `optimizer.update` and `optax.apply_updates`, to rounding; with `discover`, `discover_qhm` and
    `discover_igt` on a GPU in less time. The arguments are those of `optimizer.update`. An optimizer around another,
    such as `optax.chain`, takes the ordinary way.

    Raises:
      ValueError: if an update has another shape than its parameter. An optimizer of optax without `mean_over_groups`
        in front does that, and a bare `optax.masked`: it hands the gradients of the other parameters on with their
        group axis.

    Example:
      >>> import discover
      >>> tx = discover.discover(0.1, discover.Clusters.uniform(2))
      >>> params = jnp.zeros(3)
      >>> state = tx.init(params)
      >>> params, state = take_step(tx, jnp.ones((2, 3)), state, params, cluster_ids=jnp.array([0, 1]))
    """
    if isinstance(optimizer, GroupTransformation):
        params = jax.tree.map(jnp.asarray, params)
        context = context._replace(answer_moved=True)
        answer, state = optimizer.update(grads, state, params, context=context, **extra)
        if isinstance(answer, Moved):
            return answer.params, state
    else:
        if context != NO_CONTEXT:
            extra["context"] = context
        answer, state = optax.with_extra_args_support(optimizer).update(grads, state, params, **extra)
    for update, param in zip(jax.tree.leaves(answer), jax.tree.leaves(params), strict=True):
        if jnp.shape(update) != jnp.shape(param):
            raise ValueError(
                f"an update of shape {jnp.shape(update)} for a parameter of shape {jnp.shape(param)}: its gradients "
                "kept their group axis; put discover.mean_over_groups() in front of an optimizer of optax, or "
                "discover.freeze() in its place, in an optax.partition (optax.masked leaves the other gradients alone)"
            )
    return optax.apply_updates(params, answer), state
