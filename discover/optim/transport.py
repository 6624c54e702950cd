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

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer

from discover.optim._checks import check_group_axis, refuse_optax_wrappers
from discover.optim.family import Affine, GroupTransformation, through
from discover.optim.groups import mean_over_groups, skip_empty_batches


class IgtState(NamedTuple):
    """What the wrapper remembers between steps."""

    steps: jax.Array  # int32 [], steps taken
    params: Any  # θ_t; leaves like the parameters, which themselves are y_t
    average: Any  # v_t; leaves like the parameters, float32 or wider
    inner: Any  # the inner optimizer's state


def averaging_weight(step: Any, tail_fraction: Any = None) -> jax.Array:
    r"""γ of (T1) at step s = 1, 2, …

    With c = 1/tail_fraction (anytime tail averaging, Arnold et al. 2019):
    γ = c(s−1)/(1 + c(s−1)) · (1 − sqrt((1−c)/(s(s−1)))/c), and γ = 0 at s = 1. For tail_fraction above 2 this is
    negative at small s; it is clipped at 0. Without a tail fraction (or with 1) it is (s−1)/s, an average of all.
    """
    s = jnp.asarray(step, jnp.result_type(float))
    c = 1.0 if tail_fraction is None else 1.0 / jnp.asarray(tail_fraction, s.dtype)
    before = jnp.maximum(s - 1, 1)  # avoids 0/0 at s = 1, where γ is 0 anyway
    tail = 1 - jnp.sqrt((1 - c) / (s * before)) / c
    return jnp.where(s <= 1, 0, jnp.maximum(c * before / (1 + c * before) * tail, 0))


def igt(inner: optax.GradientTransformation, tail_fraction: Any = None) -> GroupTransformation:
    """Implicit gradient transport around an optimizer of this library: (T1) to (T3).

    Args:
      inner: an optimizer that takes gradients with a group axis. With `momentum` it is the paper's IGT, with
        `discover` its Discover-IGT.
      tail_fraction: averages over about the last 1/tail_fraction of the steps; None (or 1) averages over all.

    Returns:
      A transformation whose parameters are the shifted ones, y_t. Evaluate, save and publish
      `igt_eval_params(state, params)`. Its update needs `params`.

    Raises:
      ValueError: if `tail_fraction` is below 1, or `update` is called without `params`.

    Departs from the paper: its IGT uses heavy-ball momentum w = βw − μv; around `momentum`, which weights by
    (1 − β), the same trajectory has learning rate μ/(1 − β).
    """
    if tail_fraction is not None and not isinstance(tail_fraction, Tracer) and not float(tail_fraction) >= 1:
        raise ValueError(f"tail_fraction must be None or at least 1, got {float(tail_fraction):g}")
    inner = optax.with_extra_args_support(inner)
    group_mean = mean_over_groups()

    def init(params):
        def zero(p):
            return jnp.zeros(jnp.shape(p), jnp.promote_types(jnp.result_type(p), jnp.float32))

        # A copy, because the loop's parameters and these are both donated to the next step.
        true_params = jax.tree.map(jnp.copy, params)
        return IgtState(jnp.zeros((), jnp.int32), true_params, jax.tree.map(zero, params), inner.init(params))

    def update(updates, state, params=None, *, group_sizes=None, affine=None, **extra):
        if params is None:
            raise ValueError("igt needs the parameters: call tx.update(grads, state, params, ...)")
        refuse_optax_wrappers("igt")
        check_group_axis(updates, state.average)
        gamma = averaging_weight(state.steps + 1, tail_fraction)

        def blend(average, gradient):
            g = gamma.astype(average.dtype)
            return g * average + (1 - g) * gradient.astype(average.dtype)

        batch_mean, _ = group_mean.update(updates, optax.EmptyState(), group_sizes=group_sizes, affine=affine)
        average = jax.tree.map(blend, state.average, batch_mean)
        # (T3) is the same affine function of every group's gradient, so the v_k need not be formed.
        scale, offset = affine or (1.0, jax.tree.map(jnp.zeros_like, state.average))
        transported = Affine((1 - gamma) * scale, jax.tree.map(blend, state.average, offset))
        extra |= {"group_sizes": group_sizes}
        if isinstance(inner, GroupTransformation):
            step, inner_state = inner.update(updates, state.inner, state.params, affine=transported, **extra)
        else:
            per_group = jax.tree.map(
                lambda g, o: through(Affine(transported.scale, o), g.astype(o.dtype)), updates, transported.offset
            )
            step, inner_state = inner.update(per_group, state.inner, state.params, **extra)

        true_params = optax.apply_updates(state.params, step)
        next_gamma = averaging_weight(state.steps + 2, tail_fraction)
        ahead = next_gamma / (1 - next_gamma)

        def shifted_step(new, old, now):
            return new + ahead.astype(new.dtype) * (new - old) - now

        shifted = jax.tree.map(shifted_step, true_params, state.params, params)
        return shifted, IgtState(state.steps + 1, true_params, average, inner_state)

    return skip_empty_batches(GroupTransformation(init, update))


def igt_eval_params(state: Any, params: Any) -> Any:
    """The parameters to evaluate: θ_t where the optimizer is IGT, `params` for every other optimizer.

    Args:
      state: the optimizer's state; an `IgtState` may sit anywhere in it.
      params: the parameters that the training loop holds.
    """
    found = [s for s in jax.tree.leaves(state, is_leaf=_is_igt_state) if _is_igt_state(s)]
    if len(found) > 1:
        raise ValueError(f"the optimizer state holds {len(found)} IGT states; evaluate each on its own")
    return found[0].params if found else params


def _is_igt_state(node: Any) -> bool:
    return isinstance(node, IgtState)
