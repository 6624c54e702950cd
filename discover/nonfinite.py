"""Groups whose gradient is not finite, left out of the step."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from discover.checks import all_masked, check_group_axis, check_group_sizes
from discover.context import NO_CONTEXT, GroupTransformation


class SkippedState(NamedTuple):
    """The optimizer's state, and how often a group was left out."""

    optimizer: Any
    skipped: jax.Array  # int32 [], groups in all


def skipping_nonfinite(optimizer: GroupTransformation, skip: bool) -> GroupTransformation:
    """The optimizer, for which a group with NaN or infinity in its gradient is one without examples."""
    if not skip:
        return optimizer

    def init(params):
        return SkippedState(optimizer.init(params), jnp.zeros((), jnp.int32))

    def update(updates, state, params=None, *, group_sizes=None, context=NO_CONTEXT, **extra):
        if all_masked("gradients", updates):
            return updates, state
        num_groups = check_group_axis(updates, params)
        sizes = jnp.ones(num_groups, jnp.int32) if group_sizes is None else check_group_sizes(group_sizes, num_groups)
        finite = jnp.ones(num_groups, bool)
        for leaf in jax.tree.leaves(updates):
            finite &= jnp.all(jnp.isfinite(leaf), axis=tuple(range(1, leaf.ndim)))
        skipped = state.skipped + jnp.sum((sizes > 0) & ~finite, dtype=jnp.int32)
        sizes = jnp.where(finite, sizes, 0)
        answer, after = optimizer.update(updates, state.optimizer, params, group_sizes=sizes, context=context, **extra)
        return answer, SkippedState(after, skipped)

    return GroupTransformation(init, update)
