"""The eight optimizers of the paper, each a short composition with the same call.

All of them take `tx.update(grads, state, params, cluster_ids=ids, group_sizes=sizes)` with one gradient per group;
the plain ones average the groups first. Every numeric hyperparameter may be a traced value, and a factory may be
called inside `jax.jit` or `jax.vmap`, so that one compiled program serves a whole grid of learning rates.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike, DTypeLike

from discover.checks import check_not_negative, check_unit_interval, is_zero
from discover.clusters import Clusters
from discover.damping import damped
from discover.groups import mean_over_groups, skip_empty_batches
from discover.optimizers.igt import igt
from discover.optimizers.plain import scale_by_qhm
from discover.rule import Affine, GroupTransformation, scale_by_discover
from discover.stepping import chosen_parameters, with_step_in_one

DEFAULT_BETA = 0.95
DEFAULT_NU = 0.95


def sgd(
    learning_rate: optax.ScalarOrSchedule,
    *,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: Any = None,
    l2: ArrayLike = 0.0,
) -> GroupTransformation:
    """Stochastic gradient descent: θ ← θ − μ ĝ.

    Args:
      learning_rate: μ, a number or a schedule of the step.
      weight_decay: λ, decoupled: each step also multiplies the parameters by (1 − λ μ_t).
      mask: which parameters decay: a tree of booleans, or a function from parameters to one. It holds for
        `weight_decay` and for `l2`.
      l2: λ of a penalty λ/2·‖θ‖² on the loss: λθ is added to every gradient before the rule sees it.
    """
    return direction_to_optimizer(
        mean_over_groups(), learning_rate=learning_rate, weight_decay=weight_decay, mask=mask, l2=l2
    )


def momentum(
    learning_rate: optax.ScalarOrSchedule,
    beta: ArrayLike = 0.9,
    *,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: Any = None,
    l2: ArrayLike = 0.0,
) -> GroupTransformation:
    """Momentum with the paper's weighting: v ← βv + (1 − β)ĝ, θ ← θ − μv.

    It is heavy ball (`optax.sgd(lr, momentum=beta)`) at the learning rate lr = μ(1 − β). The other arguments are
    those of `sgd`.
    """
    return qhm(learning_rate, beta, 1.0, weight_decay=weight_decay, mask=mask, l2=l2)


def qhm(
    learning_rate: optax.ScalarOrSchedule,
    beta: ArrayLike = 0.9,
    nu: ArrayLike = 0.7,
    *,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: Any = None,
    l2: ArrayLike = 0.0,
) -> GroupTransformation:
    """Quasi-hyperbolic momentum: θ ← θ − μ[νv + (1 − ν)ĝ], v as in `momentum`. See `scale_by_qhm` and `sgd`."""
    parts = (mean_over_groups(), scale_by_qhm(beta, nu))
    return direction_to_optimizer(*parts, learning_rate=learning_rate, weight_decay=weight_decay, mask=mask, l2=l2)


def igt_momentum(
    learning_rate: optax.ScalarOrSchedule,
    beta: ArrayLike = 0.9,
    *,
    tail_fraction: ArrayLike | None = None,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: Any = None,
    l2: ArrayLike = 0.0,
) -> GroupTransformation:
    """The paper's IGT: implicit gradient transport around `momentum`.

    The paper writes its momentum without the (1 − β) weighting; its μ is (1 − β) times the learning rate here.
    Evaluate at `igt_eval_params(state, params)`. See `igt` and `sgd`.
    """
    inner = momentum(learning_rate, beta, weight_decay=weight_decay, mask=mask)
    return transported(inner, tail_fraction, mask=mask, l2=l2)


def adam(
    learning_rate: optax.ScalarOrSchedule,
    beta1: ArrayLike = 0.9,
    beta2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-8,
    *,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: Any = None,
    l2: ArrayLike = 0.0,
) -> GroupTransformation:
    """Adam on the mean over the groups; with `weight_decay`, AdamW. The other arguments are those of `sgd`."""
    check_unit_interval("beta1", beta1)
    check_unit_interval("beta2", beta2)
    parts = (mean_over_groups(), optax.scale_by_adam(beta1, beta2, eps))
    return direction_to_optimizer(*parts, learning_rate=learning_rate, weight_decay=weight_decay, mask=mask, l2=l2)


def discover(
    learning_rate: optax.ScalarOrSchedule,
    clusters: Clusters,
    *,
    beta: ArrayLike = DEFAULT_BETA,
    nu: ArrayLike = DEFAULT_NU,
    damping: ArrayLike | None = None,
    damping_clusters: int | None = None,
    rate: str = "proportional",
    buffer_dtype: DTypeLike | None = None,
    estimate_probs: bool = False,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: Any = None,
    l2: ArrayLike = 0.0,
) -> GroupTransformation:
    """One momentum per cluster: θ ← θ − μd, with the direction d of `scale_by_discover`.

    Args:
      learning_rate: μ, a number or a schedule of the step.
      clusters: the clusters and their probabilities.
      beta: β in [0, 1], how long a cluster remembers.
      nu: ν in [0, 1], how much of the step is momentum; 1 is the pure multi-momentum method.
      damping: c ≥ 0 of (D1), `damping.py`: shorter steps along the directions in which the clusters disagree. 0.1 is a
        good start. None: no damping. It reads all N buffers at each step.
      damping_clusters: how many clusters take part in the damping at a step, in turn, to bound its cost where there are
        many. None: all.
      rate, buffer_dtype, estimate_probs: see `scale_by_discover`.
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
    rule = scale_by_discover(clusters, beta, nu, rate=rate, buffer_dtype=buffer_dtype, estimate_probs=estimate_probs)
    size: dict[str, Any] = {"learning_rate": learning_rate, "weight_decay": weight_decay, "mask": mask, "l2": l2}
    if damping is not None:
        return direction_to_optimizer(
            damped(rule, clusters.probs, damping, damping_clusters), **size, clusters=clusters
        )
    return with_step_in_one(
        direction_to_optimizer(rule, **size, clusters=clusters), rule, clusters.num_clusters, **size
    )


def discover_qhm(
    learning_rate: optax.ScalarOrSchedule,
    clusters: Clusters,
    *,
    nu: ArrayLike,
    beta: ArrayLike = DEFAULT_BETA,
    rate: str = "proportional",
    buffer_dtype: DTypeLike | None = None,
    estimate_probs: bool = False,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: Any = None,
    l2: ArrayLike = 0.0,
) -> GroupTransformation:
    """Discover-QHM: `discover` under the paper's name for 0 < ν < 1, with ν to be chosen by the caller."""
    return discover(
        learning_rate,
        clusters,
        beta=beta,
        nu=nu,
        rate=rate,
        buffer_dtype=buffer_dtype,
        estimate_probs=estimate_probs,
        weight_decay=weight_decay,
        mask=mask,
        l2=l2,
    )


def discover_igt(
    learning_rate: optax.ScalarOrSchedule,
    clusters: Clusters,
    *,
    beta: ArrayLike = DEFAULT_BETA,
    nu: ArrayLike = DEFAULT_NU,
    tail_fraction: ArrayLike | None = None,
    rate: str = "proportional",
    buffer_dtype: DTypeLike | None = None,
    estimate_probs: bool = False,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: Any = None,
    l2: ArrayLike = 0.0,
) -> GroupTransformation:
    """Discover-IGT: implicit gradient transport around `discover`.

    Evaluate at `igt_eval_params(state, params)`. See `igt` for `tail_fraction`, `discover` for the rest.
    """
    inner = discover(
        learning_rate,
        clusters,
        beta=beta,
        nu=nu,
        rate=rate,
        buffer_dtype=buffer_dtype,
        estimate_probs=estimate_probs,
        weight_decay=weight_decay,
        mask=mask,
    )
    return transported(inner, tail_fraction, mask=mask, l2=l2, clusters=clusters)


def direction_to_optimizer(
    *direction: optax.GradientTransformation,
    learning_rate: optax.ScalarOrSchedule,
    weight_decay: optax.ScalarOrSchedule,
    mask: Any,
    l2: ArrayLike,
    clusters: Clusters | None = None,
) -> GroupTransformation:
    """Direction (a `GroupTransformation` first), then decoupled decay, then the step: θ ← θ(1 − λμ_t) − μ_t d."""
    check_not_negative("learning_rate", learning_rate)
    check_not_negative("weight_decay", weight_decay)
    decay = [] if is_zero(weight_decay) else [optax.add_decayed_weights(weight_decay, mask)]
    chain = optax.chain(*direction, *decay, optax.scale_by_learning_rate(learning_rate))
    return penalised(skip_empty_batches(chain, clusters and clusters.num_clusters), l2, mask)


def transported(
    inner: GroupTransformation,
    tail_fraction: ArrayLike | None,
    *,
    mask: Any,
    l2: ArrayLike,
    clusters: Clusters | None = None,
) -> GroupTransformation:
    """`igt` around an optimizer. The penalty belongs to the loss: its gradient is taken at the shifted point too."""
    return penalised(skip_empty_batches(igt(inner, tail_fraction), clusters and clusters.num_clusters), l2, mask)


def penalised(inner: GroupTransformation, l2: ArrayLike, mask: Any) -> GroupTransformation:
    """Adds λθ to every group's gradient, or nothing when λ is 0."""
    check_not_negative("l2", l2)
    if is_zero(l2):
        return inner

    def update(updates, state, params=None, **extra):
        if params is None:
            raise ValueError("l2 needs the parameters: call tx.update(grads, state, params, ...)")

        def gradient(on, p):
            wide = p.astype(jnp.promote_types(p.dtype, jnp.float32))
            return jnp.asarray(l2, wide.dtype) * wide if on else jnp.zeros_like(wide)

        penalty = Affine(1.0, jax.tree.map(gradient, chosen_parameters(mask, params), params))
        return inner.update(updates, state, params, affine=penalty, **extra)

    return GroupTransformation(inner.init, update)
