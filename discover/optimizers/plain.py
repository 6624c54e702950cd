"""The optimizers without clusters, with the library's call: they average the groups first."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from discover.checks import check_unit_interval
from discover.context import GroupTransformation, Scalar
from discover.direction import zeros_like_wide
from discover.groups import mean_over_groups
from discover.optimizers.compose import Mask, optimizer_from


def sgd(
    learning_rate: optax.ScalarOrSchedule,
    *,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: Mask = None,
    l2: Scalar = 0.0,
) -> GroupTransformation:
    """Stochastic gradient descent: θ ← θ − μ ĝ.

    Args:
      learning_rate: μ, a number or a schedule of the step.
      weight_decay: λ, decoupled: each step also multiplies the parameters by (1 − λ μ_t).
      mask: which parameters decay: a tree of booleans, or a function from parameters to one. It holds for
        `weight_decay` and for `l2`.
      l2: λ of a penalty λ/2·‖θ‖² on the loss: λθ is added to every gradient before the rule sees it.
    """
    return optimizer_from(mean_over_groups(), learning_rate=learning_rate, weight_decay=weight_decay, mask=mask, l2=l2)


def momentum(
    learning_rate: optax.ScalarOrSchedule,
    beta: Scalar = 0.9,
    *,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: Mask = None,
    l2: Scalar = 0.0,
) -> GroupTransformation:
    """Momentum with the paper's weighting: v ← βv + (1 − β)ĝ, θ ← θ − μv.

    It is heavy ball (`optax.sgd(lr, momentum=beta)`) at the learning rate lr = μ(1 − β). The other arguments are
    those of `sgd`.
    """
    return qhm(learning_rate, beta, 1.0, weight_decay=weight_decay, mask=mask, l2=l2)


def qhm(
    learning_rate: optax.ScalarOrSchedule,
    beta: Scalar = 0.9,
    nu: Scalar = 0.7,
    *,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: Mask = None,
    l2: Scalar = 0.0,
) -> GroupTransformation:
    """Quasi-hyperbolic momentum: θ ← θ − μ[νv + (1 − ν)ĝ], v as in `momentum`. See `scale_by_qhm` and `sgd`."""
    parts = (mean_over_groups(), scale_by_qhm(beta, nu))
    return optimizer_from(*parts, learning_rate=learning_rate, weight_decay=weight_decay, mask=mask, l2=l2)


def adam(
    learning_rate: optax.ScalarOrSchedule,
    beta1: Scalar = 0.9,
    beta2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    *,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: Mask = None,
    l2: Scalar = 0.0,
) -> GroupTransformation:
    """Adam on the mean over the groups; with `weight_decay`, AdamW. The other arguments are those of `sgd`."""
    parts = (mean_over_groups(), scale_by_adam(beta1, beta2, eps))
    return optimizer_from(*parts, learning_rate=learning_rate, weight_decay=weight_decay, mask=mask, l2=l2)


def scale_by_adam(beta1: Scalar, beta2: Scalar, eps: Scalar) -> optax.GradientTransformation:
    """`optax.scale_by_adam` for a direction, which is in float32 or wider whatever the parameters are in."""
    check_unit_interval("beta1", beta1)
    check_unit_interval("beta2", beta2)
    inner = optax.scale_by_adam(beta1, beta2, eps)  # pyright: ignore[reportArgumentType] (traced values are fine)
    return optax.GradientTransformation(lambda params: inner.init(zeros_like_wide(params)), inner.update)


class QhmState(NamedTuple):
    """The one momentum buffer of QHM."""

    momentum: Any  # v_t; leaves like the parameters, float32 or wider


def scale_by_qhm(beta: Scalar = 0.9, nu: Scalar = 0.7) -> optax.GradientTransformationExtraArgs:
    r"""Quasi-hyperbolic momentum (Ma & Yarats 2019), with the paper's (1 − β) weighting.

    v_t = β v_{t−1} + (1 − β) ĝ;  d = ν v_t + (1 − ν) ĝ. ν = 1 is momentum, ν = 0 is SGD. It is the rule with N = 1,
    without the second copy that the rule would keep.

    Args:
      beta: β in [0, 1], how long the momentum remembers.
      nu: ν in [0, 1], how much of the step is momentum.

    Returns:
      A transformation of parameter-shaped gradients (no group axis: chain it after `mean_over_groups`).
    """
    check_unit_interval("beta", beta)
    check_unit_interval("nu", nu)

    def update(updates, state, params=None, **_):
        del params

        def toward(weight, start, end):
            return start + jnp.asarray(weight, start.dtype) * (end.astype(start.dtype) - start)

        momentum = jax.tree.map(lambda v, g: toward(1 - beta, v, g), state.momentum, updates)
        if isinstance(nu, int | float) and nu == 1:  # plain momentum: one result instead of two equal ones
            return momentum, QhmState(momentum)
        direction = jax.tree.map(lambda v, g: toward(1 - nu * beta, v, g), state.momentum, updates)
        return direction, QhmState(momentum)

    return optax.GradientTransformationExtraArgs(lambda params: QhmState(zeros_like_wide(params)), update)
