r"""Implicit gradient transport (IGT) around any optimizer that takes groups.

The paper's IGT takes gradients at a point shifted along the last step and averages them:

    γ_t     averaging weight: t/(t+1), or anytime tail averaging                            (T1)
    y_t   = θ_t + γ_t/(1 − γ_t)·(θ_t − θ_{t−1})         where the gradient is taken         (T2)
    v_t   = γ_t·v_{t−1} + (1 − γ_t)·ĝ(y_t)                                                   (T3)

and steps along v_t with momentum. Here it is a wrapper, in the manner of `optax.contrib.schedule_free`: the
training loop holds y_t, and `igt_eval_params` returns θ_t. (T3) is read per group, as the sum over the batch in the
paper's Discover-IGT demands: the inner optimizer is fed v_k = γ v_{t−1} + (1 − γ) ĝ_k, and the running v_t is their
mean. Hence Discover-IGT is `igt(discover(...))`, with no rule of its own.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from discover.checks import check_at_least, check_group_axis
from discover.context import NO_CONTEXT, Context, GroupTransformation, Moved, Offset, Scalar, with_offset
from discover.direction import zeros_like_wide
from discover.groups import has_no_groups, mean_over_groups, without_groups
from discover.optimizers.compose import Mask, sizes_that_count, unless_empty, with_penalty
from discover.optimizers.plain import momentum


class IgtState(NamedTuple):
    """What the wrapper remembers between steps."""

    steps: jax.Array  # int32 [], steps taken
    params: Any  # θ_t; leaves like the parameters, which themselves are y_t
    average: Any  # v_t; leaves like the parameters, float32 or wider
    inner: Any  # the inner optimizer's state


def averaging_weight(step: Scalar, tail_fraction: Scalar | None = None) -> jax.Array:
    r"""γ of (T1) at step s = 1, 2, …

    With c = 1/tail_fraction (anytime tail averaging, Arnold et al. 2019):
    γ = c(s−1)/(1 + c(s−1)) · (1 − sqrt((1−c)/(s(s−1)))/c), and γ = 0 at s = 1. For tail_fraction above 2 this is
    negative at small s; it is clipped at 0. Without a tail fraction (or with 1) it is (s−1)/s, an average of all.
    """
    past, root = _tail(step, tail_fraction)
    return jnp.maximum(past - root, 0) / (1 + past)


def _tail(step: Scalar, tail_fraction: Scalar | None) -> tuple[jax.Array, jax.Array]:
    """m = c(s−1) and r = sqrt((1−c)(s−1)/s), in which γ = (m−r)/(1+m), 1−γ = (1+r)/(1+m), γ/(1−γ) = (m−r)/(1+r).

    In float32 the last two would lose all their digits if they were computed from γ, which comes close to 1.
    """
    s = jnp.asarray(step, jnp.result_type(float))
    c = jnp.asarray(1.0 if tail_fraction is None else 1.0 / jnp.asarray(tail_fraction, s.dtype), s.dtype)
    return c * (s - 1), jnp.sqrt((1 - c) * (s - 1) / s)


def new_weight(step: Scalar, tail_fraction: Scalar | None = None) -> jax.Array:
    """1 − γ at step s: the weight of the newest gradient in the average."""
    past, root = _tail(step, tail_fraction)
    return jnp.minimum((1 + root) / (1 + past), 1)


def look_ahead(step: Scalar, tail_fraction: Scalar | None = None) -> jax.Array:
    """γ/(1 − γ) at step s: how many of the last step's lengths the gradient is taken ahead, (T2)."""
    past, root = _tail(step, tail_fraction)
    return jnp.maximum(past - root, 0) / (1 + root)


def igt(
    inner: optax.GradientTransformation, tail_fraction: Scalar | None = None, *, num_clusters: int | None = None
) -> GroupTransformation:
    """Implicit gradient transport around an optimizer of this library: (T1) to (T3).

    Args:
      inner: an optimizer that takes gradients with a group axis. With `momentum` it is the paper's IGT, with
        `discover` its Discover-IGT.
      tail_fraction: averages over about the last 1/tail_fraction of the steps; None (or 1) averages over all.
      num_clusters: N, where the inner optimizer has clusters; groups of other clusters count as groups without
        examples.

    Returns:
      A transformation whose parameters are the shifted ones, y_t. Evaluate, save and publish
      `igt_eval_params(state, params)`. Its update needs `params`.

    Raises:
      ValueError: if `tail_fraction` is below 1, or `update` is called without `params`.
      TypeError: if `inner` is no optimizer.

    Departs from the paper: its IGT uses heavy-ball momentum w = βw − μv; around `momentum`, which weights by
    (1 − β), the same trajectory has learning rate μ/(1 − β).
    """
    if not isinstance(inner, optax.GradientTransformation):
        raise TypeError(f"igt is put around an optimizer, got {inner!r}: discover.igt_momentum takes a learning rate")
    if tail_fraction is not None:
        check_at_least("tail_fraction", tail_fraction, 1)
    inner = optax.with_extra_args_support(inner)
    group_mean = mean_over_groups()

    def init(params):
        # A copy, because the loop's parameters and these are both donated to the next step.
        true_params = jax.tree.map(jnp.copy, params)
        return IgtState(jnp.zeros((), jnp.int32), true_params, zeros_like_wide(params), inner.init(params))

    def update(updates, state, params=None, *, cluster_ids=None, group_sizes=None, context=NO_CONTEXT, **extra):
        if params is None:
            raise ValueError("igt needs the parameters: call tx.update(grads, state, params, ...)")
        if has_no_groups(updates):
            return without_groups(updates), state
        check_group_axis(updates, state.average)
        if num_clusters is not None and cluster_ids is not None:
            group_sizes = sizes_that_count(updates, params, cluster_ids, group_sizes, num_clusters)
        extra |= {"cluster_ids": cluster_ids, "group_sizes": group_sizes}
        new = new_weight(state.steps + 1, tail_fraction)

        def blend(average, gradient):
            return average + new.astype(average.dtype) * (gradient.astype(average.dtype) - average)

        batch_mean, _ = group_mean.update(updates, optax.EmptyState(), group_sizes=group_sizes, context=context)
        average = jax.tree.map(blend, state.average, batch_mean)
        # (T3) is the same affine function of every group's gradient, so the v_k need not be formed.
        offset = _averaged_with(context.offset, state.average, new, blend)
        if isinstance(inner, GroupTransformation):
            extra["context"] = Context(offset=offset, slices=context.slices)
        else:
            updates = jax.tree.map(
                lambda g, o: with_offset(offset._replace(vector=o[None]), g.astype(o.dtype)), updates, offset.vector
            )
        # Not the moved parameters: to be in place of the old ones, these would have to be copied first.
        step, inner_state = inner.update(updates, state.inner, state.params, **extra)
        true_params = optax.apply_updates(state.params, step)
        ahead = look_ahead(state.steps + 2, tail_fraction)
        shifted = jax.tree.map(lambda p, by: (p + ahead.astype(by.dtype) * by).astype(p.dtype), true_params, step)
        steps = state.steps + 1
        after, before = (steps, true_params, average, shifted), (state.steps, state.params, state.average, params)
        steps, true_params, average, shifted = unless_empty(group_sizes, after, before)
        answer: Any = Moved(shifted) if context.answer_moved else jax.tree.map(jnp.subtract, shifted, params)
        return answer, IgtState(steps, true_params, average, inner_state)

    return GroupTransformation(init, update)


def _averaged_with(offset: Offset | None, average: Any, new: jax.Array, blend: Callable[..., jax.Array]) -> Offset:
    """v_k = γ·v + (1 − γ)·(what the offset makes of ĝ_k), as an offset."""
    treedef = jax.tree.structure(average)
    if offset is None:
        vectors = [jnp.zeros_like(a) for a in jax.tree.leaves(average)]
        scale = 1.0
    else:
        scale, factor, given = offset
        each = zip(jax.tree.leaves(average), treedef.flatten_up_to(given), strict=True)
        vectors = [
            jnp.zeros_like(a) if v is None else jnp.asarray(factor, a.dtype) * v.astype(a.dtype) for a, v in each
        ]
    return Offset(new * scale, 1.0, jax.tree.map(blend, average, treedef.unflatten(vectors)))


def igt_momentum(
    learning_rate: optax.ScalarOrSchedule,
    beta: Scalar = 0.9,
    *,
    tail_fraction: Scalar | None = None,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: Mask = None,
    l2: Scalar = 0.0,
) -> GroupTransformation:
    """The paper's IGT: implicit gradient transport around `momentum`.

    The paper writes its momentum without the (1 − β) weighting; its μ is (1 − β) times the learning rate here.
    Evaluate at `igt_eval_params(state, params)`. See `igt` and `sgd`.
    """
    inner = momentum(learning_rate, beta, weight_decay=weight_decay, mask=mask)
    return transported(inner, tail_fraction, l2=l2, mask=mask)


def transported(
    inner: GroupTransformation,
    tail_fraction: Scalar | None,
    *,
    l2: Scalar,
    mask: Mask,
    num_clusters: int | None = None,
) -> GroupTransformation:
    """`igt` around an optimizer. The penalty belongs to the loss: its gradient is taken at the shifted point too."""
    return with_penalty(igt(inner, tail_fraction, num_clusters=num_clusters), l2, mask)


def igt_eval_params(state: Any, params: Any) -> Any:
    """The parameters to evaluate: θ_t where the optimizer is IGT, `params` for every other optimizer.

    Args:
      state: the optimizer's state; an `IgtState` may sit anywhere in it.
      params: the parameters that the training loop holds.
    """
    found = [s for s in jax.tree.leaves(state, is_leaf=_is_igt_state) if _is_igt_state(s)]
    if len(found) > 1:
        raise ValueError(f"the optimizer state holds {len(found)} IGT states; evaluate each on its own")
    if not found:
        return params
    true_params = found[0].params
    if not any(map(_is_masked, jax.tree.leaves(true_params, is_leaf=_is_masked))):
        return true_params
    # Under `optax.partition` IGT has some parameters only: the others are as the loop holds them.
    return jax.tree.map(lambda now, true: now if _is_masked(true) else true, params, true_params)


def _is_masked(node: Any) -> bool:
    return isinstance(node, optax.MaskedNode)


def _is_igt_state(node: Any) -> bool:
    return isinstance(node, IgtState)
