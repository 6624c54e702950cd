r"""Discover in front of Adam: one momentum per cluster, then Adam's scale per parameter.

The direction d of `family.py`, (F1), takes the place of the batch's gradient in Adam:

    m ← β₁ m + (1 − β₁) d,      v ← β₂ v + (1 − β₂) d²                                      (A1)
    θ ← θ(1 − λμ) − μ · m̂ / (√v̂ + ε)              m̂, v̂: m/(1 − β₁ᵗ), v/(1 − β₂ᵗ)           (A2)

With one cluster and β = 0 (or ν = 0) the direction is the batch's gradient, and this is Adam, exactly.
"""

from typing import Any

import optax
from jax.typing import ArrayLike, DTypeLike

from discover.checks import check_unit_interval
from discover.clusters import Clusters
from discover.damping import damped
from discover.optimizers.discover import DEFAULT_BETA, DEFAULT_NU, direction_to_optimizer
from discover.rule import scale_by_discover


def discover_adam(
    learning_rate: optax.ScalarOrSchedule,
    clusters: Clusters,
    *,
    beta: ArrayLike = DEFAULT_BETA,
    nu: ArrayLike = DEFAULT_NU,
    damping: ArrayLike | None = None,
    damping_clusters: int | None = None,
    beta1: ArrayLike = 0.0,
    beta2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-8,
    rate: str = "proportional",
    buffer_dtype: DTypeLike | None = None,
    estimate_probs: bool = False,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: Any = None,
    l2: ArrayLike = 0.0,
) -> optax.GradientTransformationExtraArgs:
    """Adam on the direction of Discover, (A1) and (A2); with `weight_decay`, AdamW.

    It is `optax.chain(scale_by_discover(...), optax.scale_by_adam(...), ...)`, ready made. Any other transformation of
    optax can be chained after `scale_by_discover` in the same way.

    Args:
      learning_rate: μ, a number or a schedule of the step. Start below Adam's: d has less noise, so its squares are
        smaller and steps longer (`docs/adam.md`: a third of Adam's was best).
      clusters: the clusters and their probabilities.
      beta: β in [0, 1], how long a cluster remembers.
      nu: ν in [0, 1], how much of the direction is momentum.
      beta1: β₁ in [0, 1], Adam's own momentum on top of the clusters'. They remember already, so it is 0 by default:
        0.9 on top of β = 0.95 was worse at every learning rate that we tried (`docs/adam.md`).
      beta2: β₂ in [0, 1], how long Adam remembers the squares.
      eps: ε, added to the root of the squares.
      damping, damping_clusters: see `discover`.
      rate, buffer_dtype, estimate_probs: see `scale_by_discover`.
      weight_decay, mask, l2: see `sgd`.

    Raises:
      ValueError: if β, ν, β₁ or β₂ is outside [0, 1].

    Example:
      >>> import jax.numpy as jnp
      >>> tx = discover_adam(1e-3, Clusters.uniform(2))
      >>> params = jnp.zeros(3)
      >>> state = tx.init(params)
      >>> updates, state = tx.update(jnp.ones((2, 3)), state, params, cluster_ids=jnp.array([0, 1]))
      >>> updates.shape
      (3,)
    """
    check_unit_interval("beta1", beta1)
    check_unit_interval("beta2", beta2)
    rule = scale_by_discover(clusters, beta, nu, rate=rate, buffer_dtype=buffer_dtype, estimate_probs=estimate_probs)
    return direction_to_optimizer(
        rule if damping is None else damped(rule, clusters.probs, damping, damping_clusters),
        optax.scale_by_adam(beta1, beta2, eps),
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        mask=mask,
        l2=l2,
        clusters=clusters,
    )
