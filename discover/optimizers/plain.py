"""The single-momentum methods: the rule of `family.py` with N = 1, without the second copy it would keep."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from discover.checks import check_unit_interval


class QhmState(NamedTuple):
    """The one momentum buffer of QHM."""

    momentum: Any  # v_t; leaves like the parameters, float32 or wider


def scale_by_qhm(beta: Any = 0.9, nu: Any = 0.7) -> optax.GradientTransformationExtraArgs:
    r"""Quasi-hyperbolic momentum (Ma & Yarats 2019), with the paper's (1 − β) weighting.

    v_t = β v_{t−1} + (1 − β) ĝ;  d = ν v_t + (1 − ν) ĝ. ν = 1 is momentum, ν = 0 is SGD.

    Args:
      beta: β in [0, 1], how long the momentum remembers.
      nu: ν in [0, 1], how much of the step is momentum.

    Returns:
      A transformation of parameter-shaped gradients (no group axis: chain it after `mean_over_groups`).
    """
    check_unit_interval("beta", beta)
    check_unit_interval("nu", nu)

    def init(params):
        def zero(p):
            return jnp.zeros(jnp.shape(p), jnp.promote_types(jnp.result_type(p), jnp.float32))

        return QhmState(jax.tree.map(zero, params))

    def update(updates, state, params=None, **_):
        del params

        def toward(weight, start, end):
            return start + jnp.asarray(weight, start.dtype) * (end.astype(start.dtype) - start)

        momentum = jax.tree.map(lambda v, g: toward(1 - beta, v, g), state.momentum, updates)
        if isinstance(nu, int | float) and nu == 1:  # plain momentum: one result instead of two equal ones
            return momentum, QhmState(momentum)
        direction = jax.tree.map(lambda v, g: toward(1 - nu * beta, v, g), state.momentum, updates)
        return direction, QhmState(momentum)

    return optax.GradientTransformationExtraArgs(init, update)
