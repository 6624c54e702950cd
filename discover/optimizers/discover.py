"""The optimizers with one momentum per cluster: Discover by itself, under the paper's names, and in front of Adam."""

import optax
from jax.typing import DTypeLike

from discover.clusters import Clusters
from discover.context import GroupTransformation, Scalar
from discover.direction import scale_by_discover
from discover.nonfinite import skipping_nonfinite
from discover.optimizers.buffered import buffered_only
from discover.optimizers.compose import Mask, optimizer_from
from discover.optimizers.igt import transported
from discover.optimizers.plain import scale_by_adam


def discover(
    learning_rate: optax.ScalarOrSchedule,
    clusters: Clusters,
    *,
    beta: Scalar = 0.95,
    nu: Scalar = 0.95,
    damping: Scalar | None = None,
    damping_clusters: int | None = None,
    rate: str = "proportional",
    buffer_dtype: DTypeLike | None = None,
    buffers: str = "device",
    estimate_probs: bool = False,
    skip_nonfinite: bool = False,
    buffered: Mask = None,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: Mask = None,
    l2: Scalar = 0.0,
) -> GroupTransformation:
    """One momentum per cluster: θ ← θ − μd, with the direction d of `scale_by_discover`.

    Args:
      learning_rate: μ, a number or a schedule of the step.
      clusters: the clusters and their probabilities.
      beta: β in [0, 1], how long a cluster remembers.
      nu: ν in [0, 1], how much of the step is momentum; 1 is the pure multi-momentum method.
      damping, damping_clusters, rate, buffer_dtype, buffers, estimate_probs, skip_nonfinite: see `scale_by_discover`.
      buffered: which parameters have a buffer for each cluster, chosen as by `mask`; the others share one momentum.
        None: all. See docs/notes/digits.md for what the last layers alone bring.
      weight_decay, mask, l2: see `sgd`.

    Example:
      >>> import jax.numpy as jnp
      >>> tx = discover(0.1, Clusters.uniform(2))
      >>> params = jnp.zeros(3)
      >>> state = tx.init(params)
      >>> grads = jnp.ones((2, 3))                      # one gradient per group
      >>> updates, state = tx.update(grads, state, params, cluster_ids=jnp.array([0, 1]))
      >>> params = optax.apply_updates(params, updates)
    """
    rule = scale_by_discover(
        clusters,
        beta,
        nu,
        damping=damping,
        damping_clusters=damping_clusters,
        rate=rate,
        buffer_dtype=buffer_dtype,
        buffers=buffers,
        estimate_probs=estimate_probs,
    )
    return optimizer_from(
        buffered_only(rule, buffered, beta, nu),
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        mask=mask,
        l2=l2,
        num_clusters=clusters.num_clusters,
        skip_nonfinite=skip_nonfinite,
    )


def discover_qhm(
    learning_rate: optax.ScalarOrSchedule,
    clusters: Clusters,
    *,
    nu: Scalar,
    beta: Scalar = 0.95,
    damping: Scalar | None = None,
    damping_clusters: int | None = None,
    rate: str = "proportional",
    buffer_dtype: DTypeLike | None = None,
    buffers: str = "device",
    estimate_probs: bool = False,
    skip_nonfinite: bool = False,
    buffered: Mask = None,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: Mask = None,
    l2: Scalar = 0.0,
) -> GroupTransformation:
    """Discover-QHM: `discover` under the paper's name for 0 < ν < 1, with ν to be chosen by the caller."""
    return discover(
        learning_rate,
        clusters,
        beta=beta,
        nu=nu,
        damping=damping,
        damping_clusters=damping_clusters,
        rate=rate,
        buffer_dtype=buffer_dtype,
        buffers=buffers,
        estimate_probs=estimate_probs,
        skip_nonfinite=skip_nonfinite,
        buffered=buffered,
        weight_decay=weight_decay,
        mask=mask,
        l2=l2,
    )


def discover_igt(
    learning_rate: optax.ScalarOrSchedule,
    clusters: Clusters,
    *,
    beta: Scalar = 0.95,
    nu: Scalar = 0.95,
    tail_fraction: Scalar | None = None,
    damping: Scalar | None = None,
    damping_clusters: int | None = None,
    rate: str = "proportional",
    buffer_dtype: DTypeLike | None = None,
    buffers: str = "device",
    estimate_probs: bool = False,
    skip_nonfinite: bool = False,
    buffered: Mask = None,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: Mask = None,
    l2: Scalar = 0.0,
) -> GroupTransformation:
    """Discover-IGT: implicit gradient transport around `discover`.

    Evaluate at `igt_eval_params(state, params)`. See `igt` for `tail_fraction`, `discover` for the rest.
    """
    inner = discover(
        learning_rate,
        clusters,
        beta=beta,
        nu=nu,
        damping=damping,
        damping_clusters=damping_clusters,
        rate=rate,
        buffer_dtype=buffer_dtype,
        buffers=buffers,
        estimate_probs=estimate_probs,
        buffered=buffered,
        weight_decay=weight_decay,
        mask=mask,
    )
    outer = transported(inner, tail_fraction, l2=l2, mask=mask, num_clusters=clusters.num_clusters)
    return skipping_nonfinite(outer, skip_nonfinite)


def discover_adam(
    learning_rate: optax.ScalarOrSchedule,
    clusters: Clusters,
    *,
    beta: Scalar = 0.95,
    nu: Scalar = 0.95,
    beta1: Scalar = 0.0,
    beta2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    damping: Scalar | None = None,
    damping_clusters: int | None = None,
    rate: str = "proportional",
    buffer_dtype: DTypeLike | None = None,
    buffers: str = "device",
    estimate_probs: bool = False,
    skip_nonfinite: bool = False,
    buffered: Mask = None,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: Mask = None,
    l2: Scalar = 0.0,
) -> GroupTransformation:
    r"""Adam on the direction of Discover, with `weight_decay`, AdamW.

    The direction d, (F1) of `rule.py`, takes the place of the batch's gradient in Adam:

        m ← β₁ m + (1 − β₁) d,      v ← β₂ v + (1 − β₂) d²                                  (A1)
        θ ← θ(1 − λμ) − μ · m̂ / (√v̂ + ε)              m̂, v̂: m/(1 − β₁ᵗ), v/(1 − β₂ᵗ)       (A2)

    With one cluster and β = 0 (or ν = 0) the direction is the batch's gradient, and this is Adam, exactly.

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
      damping, damping_clusters, rate, buffer_dtype, buffers, estimate_probs, skip_nonfinite: see `scale_by_discover`.
      buffered: which parameters have a buffer for each cluster, chosen as by `mask`; the others share one momentum.
        None: all. See docs/notes/digits.md for what the last layers alone bring.
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
    rule = scale_by_discover(
        clusters,
        beta,
        nu,
        damping=damping,
        damping_clusters=damping_clusters,
        rate=rate,
        buffer_dtype=buffer_dtype,
        buffers=buffers,
        estimate_probs=estimate_probs,
    )
    return optimizer_from(
        buffered_only(rule, buffered, beta, nu),
        scale_by_adam(beta1, beta2, eps),
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        mask=mask,
        l2=l2,
        num_clusters=clusters.num_clusters,
        skip_nonfinite=skip_nonfinite,
    )
