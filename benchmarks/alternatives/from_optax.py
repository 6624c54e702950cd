"""Lion, schedule-free Adam, AdEMAMix and SAM as optax has them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from benchmarks.alternatives.parts import gradient_with, rate_at


def lion(learning_rate: optax.ScalarOrSchedule, *, beta1: float = 0.9, beta2: float = 0.99, l2: float = 0.0):
    """The sign of a momentum (Chen et al. 2023, https://arxiv.org/abs/2302.06675)."""
    return optax.chain(
        gradient_with(l2), optax.scale_by_lion(beta1, beta2), optax.scale_by_learning_rate(learning_rate)
    )


def ademamix(
    learning_rate: optax.ScalarOrSchedule,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    beta3: float = 0.999,
    alpha: float = 5.0,
    l2: float = 0.0,
):
    """Adam with a second, slow momentum (Pagliardini et al. 2024, https://arxiv.org/abs/2409.03137).

    β₃ is not the paper's 0.9999 but 0.999, as its appendix advises for short runs.
    """
    slow: Any = optax.contrib.scale_by_ademamix(beta1, beta2, beta3, alpha)
    return optax.chain(gradient_with(l2), slow, optax.scale_by_learning_rate(learning_rate))


class ScheduleFree(NamedTuple):
    """optax's state, which is judged at x where the training loop has y."""

    inner: optax.contrib.ScheduleFreeState

    def eval_params(self, params: Any) -> Any:
        return optax.contrib.schedule_free_eval_params(self.inner, params)


def schedule_free(
    learning_rate: optax.ScalarOrSchedule,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    l2: float = 0.0,
):
    """Schedule-free Adam (Defazio et al. 2024, https://arxiv.org/abs/2405.15682), for a learning rate without decay."""
    step = optax.chain(
        optax.scale_by_rms(decay=beta2, eps=eps, eps_in_sqrt=False, bias_correction=True),
        optax.scale_by_learning_rate(learning_rate),
    )
    inner = optax.contrib.schedule_free(step, learning_rate, b1=beta1)

    def update(updates: Any, state: ScheduleFree, params: Any = None):
        updates, state_after = inner.update(updates, state.inner, params)
        return updates, ScheduleFree(state_after)

    wrapped = optax.GradientTransformation(lambda params: ScheduleFree(inner.init(params)), update)
    return optax.chain(gradient_with(l2), wrapped)


class Sam(NamedTuple):
    """optax's state, which is judged at the parameters before an ascent."""

    inner: optax.contrib.SAMState

    def eval_params(self, params: Any) -> Any:
        descended = self.inner.steps_since_sync == 0
        return jax.tree.map(lambda now, before: jnp.where(descended, now, before), params, self.inner.cache)


def sam(learning_rate: optax.ScalarOrSchedule, *, rho: float = 0.05, beta: float = 0.9, l2: float = 0.0):
    """Sharpness-aware minimization around momentum (Foret et al. 2021, https://arxiv.org/abs/2010.01412).

    It has as many gradients as the others, one a step: on one batch it goes up by ρ, on the next it takes its step
    from where it was. So it takes half as many steps; the original goes up and down on the same batch.
    """
    down = optax.chain(
        optax.ema(beta, debias=False),
        optax.scale_by_learning_rate(lambda count: rate_at(learning_rate, 2 * count + 1)),
    )
    up = optax.chain(optax.contrib.normalize(), optax.sgd(rho))
    inner = optax.contrib.sam(down, up)

    def update(updates: Any, state: Sam, params: Any = None):
        updates, state_after = inner.update(updates, state.inner, params)
        return updates, Sam(state_after)

    wrapped = optax.GradientTransformation(lambda params: Sam(inner.init(params)), update)
    return optax.chain(gradient_with(l2), wrapped)
