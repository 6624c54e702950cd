"""MARS: Adam on a gradient from which a part of the last change is extrapolated."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from benchmarks.alternatives.parts import gradient_with


class MarsState(NamedTuple):
    """What the correction remembers."""

    last: Any  # the last gradient; leaves like the parameters


def mars(
    learning_rate: optax.ScalarOrSchedule,
    *,
    gamma: float = 0.025,
    beta1: float = 0.95,
    beta2: float = 0.99,
    eps: float = 1e-8,
    l2: float = 0.0,
):
    """MARS-AdamW with the last batch's gradient (Yuan et al. 2024, https://arxiv.org/abs/2411.10438, "MARS-approx").

    c = g + γβ₁/(1 − β₁)·(g − g'), g' the gradient of the step before; each parameter's c is scaled down to norm 1;
    then Adam's step from c. All parameters take it, as the authors' `optimize_1d=True`.
    """

    def corrected(updates: Any, state: MarsState, params: Any = None):
        del params
        factor = gamma * beta1 / (1 - beta1)
        found = jax.tree.map(lambda g, last: g + factor * (g - last), updates, state.last)
        clipped = jax.tree.map(lambda c: c / jnp.maximum(1.0, jnp.linalg.norm(c.ravel())), found)
        return clipped, MarsState(updates)

    correction = optax.GradientTransformation(lambda params: MarsState(jax.tree.map(jnp.zeros_like, params)), corrected)
    return optax.chain(
        gradient_with(l2),
        correction,
        optax.scale_by_adam(beta1, beta2, eps),
        optax.scale_by_learning_rate(learning_rate),
    )
