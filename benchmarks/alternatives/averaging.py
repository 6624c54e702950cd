"""Averages in place of buffers: of the parameters, or of the gradients of several batches."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import discover
from benchmarks.alternatives.parts import gradient_with, rate_at


class AverageState(NamedTuple):
    """An exponential mean of the parameters, which is what is judged."""

    average: Any  # leaves like the parameters
    weight: jax.Array  # float32 [], 1 − memory^t: what the average has of a whole one
    inner: Any

    def eval_params(self, params: Any) -> Any:
        del params
        return jax.tree.map(lambda mean: mean / jnp.maximum(self.weight, 1e-8), self.average)


def averaged_momentum(
    learning_rate: optax.ScalarOrSchedule, *, memory: float = 0.99, beta: float = 0.9, l2: float = 0.0
):
    """Momentum, judged at an exponential mean of its parameters; for a learning rate without decay."""
    inner = optax.chain(gradient_with(l2), optax.ema(beta, debias=False), optax.scale_by_learning_rate(learning_rate))

    def init(params: Any) -> AverageState:
        return AverageState(jax.tree.map(jnp.zeros_like, params), jnp.zeros(()), inner.init(params))

    def update(updates: Any, state: AverageState, params: Any = None, **extra: Any):
        updates, after = inner.update(updates, state.inner, params, **extra)
        moved = optax.apply_updates(params, updates)
        average = jax.tree.map(lambda mean, p: memory * mean + (1 - memory) * p, state.average, moved)
        return updates, AverageState(average, memory * state.weight + (1 - memory), after)

    return optax.GradientTransformationExtraArgs(init, update)


def accumulated_momentum(learning_rate: optax.ScalarOrSchedule, *, every: int = 10, beta: float = 0.9, l2: float = 0.0):
    """Momentum on the mean gradient of so many batches: one step for each, so fewer steps, of larger batches."""
    return _accumulated(optax.ema(beta, debias=False), learning_rate, every, l2)


def accumulated_muon(
    learning_rate: optax.ScalarOrSchedule, *, every: int = 10, beta: float = 0.95, nu: float = 0.95, l2: float = 0.0
):
    """Muon on the mean gradient of so many batches."""
    direction = optax.chain(discover.scale_by_qhm(beta, nu), discover.scale_by_orthogonal())
    return _accumulated(direction, learning_rate, every, l2)


def _accumulated(direction: Any, learning_rate: optax.ScalarOrSchedule, every: int, l2: Any) -> Any:
    def rate(count: jax.Array) -> Any:
        return rate_at(learning_rate, every * count + every - 1)

    step = optax.chain(direction, optax.scale_by_learning_rate(rate))
    slow = optax.MultiSteps(step, every)
    return optax.chain(gradient_with(l2), optax.GradientTransformation(slow.init, slow.update))
