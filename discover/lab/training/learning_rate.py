"""Learning-rate schedules whose every number may be a traced value, so that one program serves a whole grid."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike


def factor(name: str, step: ArrayLike, warmup_steps: ArrayLike, total_steps: ArrayLike) -> jax.Array:
    """The share of the peak learning rate at a step (0 for the first one).

    With w warm-up steps of T: (t + 1)/w for t < w; then 1 (`constant`), or
    (1 + cos(π (t − w)/(T − w)))/2 (`cosine`), which is 1 at t = w and would reach 0 at t = T.

    Args:
        name: `cosine` or `constant`.
        step: t, counted from 0.
        warmup_steps: w; 0 starts at the peak.
        total_steps: T.
    """
    t, w, total = (jnp.asarray(x, jnp.float32) for x in (step, warmup_steps, total_steps))
    rising = (t + 1) / jnp.maximum(w, 1)
    if name == "constant":
        return jnp.where(t < w, rising, 1.0)
    progress = jnp.clip((t - w) / jnp.maximum(total - w, 1), 0.0, 1.0)
    return jnp.where(t < w, rising, 0.5 * (1 + jnp.cos(jnp.pi * progress)))


def schedule(name: str, peak: ArrayLike, warmup_steps: ArrayLike, total_steps: ArrayLike) -> optax.Schedule:
    """Returns ``step -> learning rate`` for an optimizer: ``peak`` times :func:`factor`.

    Example:
        >>> rate = schedule("cosine", 0.2, warmup_steps=5, total_steps=105)
        >>> [round(float(rate(step)), 3) for step in (0, 4, 5, 55, 104)]
        [0.04, 0.2, 0.2, 0.1, 0.0]
    """
    return lambda step: peak * factor(name, step, warmup_steps, total_steps)
