r"""The printed equations, literally, so that anyone can compare.

Algorithm 1 of the paper moves each present buffer by α_n δ_n but ḡ by α·Δ (δ_n and Δ as in `rule.py`). With one
example per batch and α_n = α/p_n these agree; with several groups they do not, and ḡ drifts away from Σ p_n g_n. The
library's own rule is in `rule.py`; `docs/family.md` says where the two agree and where they part.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from discover.checks import check_cluster_ids, check_group_axis, check_group_sizes, check_unit_interval
from discover.clusters import Clusters
from discover.context import NO_CONTEXT, GroupTransformation, Scalar, with_offset
from discover.direction import scale_by_discover
from discover.gpu.parameters import Parameter, Result, map_parameters
from discover.gpu.stacked import Stacked
from discover.groups import mean_over_groups
from discover.optimizers.compose import Mask, optimizer_from
from discover.optimizers.igt import transported
from discover.rule import Weights, batch_weights


class FamilySetting(NamedTuple):
    """A setting of the library's rule that follows the paper's trajectory."""

    beta: float
    nu: float
    learning_rate: float


def map_to_family(
    learning_rate: float, alpha: float, alpha_n: float, *, num_groups: int, num_clusters: int
) -> FamilySetting:
    r"""The (β, ν, μ') at which the library's rule is the paper's Discover with its tuned pair (α, α_n).

    The appendix tunes α and α_n apart, because "this averaging makes effective α_n depend on the distributed
    setup". If the buffer changes of the devices that share a cluster are summed, then with K equal groups and
    uniform p = 1/N the printed ḡ is r·Σ p_n g_n exactly, r = α/(α_n K p), and the method is the rule with
    β = 1 − α_n K p, ν = (1 − 1/r)/β and learning rate μ' = μ r.

    Args:
      learning_rate: the paper's μ.
      alpha: the paper's α.
      alpha_n: the paper's α_n.
      num_groups: K, the groups (cores) per batch.
      num_clusters: N.

    Raises:
      ValueError: if the pair lies outside the family (β or ν outside [0, 1]).

    Example:
      >>> beta, nu, rate = map_to_family(0.01, 0.095, 0.1, num_groups=8, num_clusters=10)
      >>> round(beta, 4), round(nu, 4), round(rate, 6)
      (0.92, 0.1716, 0.011875)
    """
    step = alpha_n * num_groups / num_clusters
    beta = 1 - step
    ratio = alpha / step if step > 0 else float("inf")
    if not 0 < step <= 1:
        raise ValueError(
            f"alpha_n = {alpha_n:g} with {num_groups} groups and {num_clusters} clusters gives beta = {beta:g}, "
            "outside [0, 1): use the paper_* optimizers for it"
        )
    nu = (1 - 1 / ratio) / beta if beta > 0 else 0.0
    if not 0 <= nu <= 1:
        raise ValueError(
            f"alpha = {alpha:g} and alpha_n = {alpha_n:g} with {num_groups} groups and {num_clusters} clusters give "
            f"nu = {nu:g}, outside [0, 1]: use the paper_* optimizers for them"
        )
    return FamilySetting(beta, nu, learning_rate * ratio)


def paper_discover(
    learning_rate: optax.ScalarOrSchedule,
    clusters: Clusters,
    *,
    alpha: Scalar,
    alpha_n: Scalar | None = None,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: Mask = None,
    l2: Scalar = 0.0,
) -> GroupTransformation:
    """Discover as printed in Algorithm 1.

    θ ← θ − μ(ḡ + Δ); g_n ← g_n + α_n δ_n for the clusters in the batch; ḡ ← ḡ + αΔ.

    Args:
      learning_rate: μ.
      clusters: the clusters and their probabilities.
      alpha: α.
      alpha_n: α_n, one value for all clusters; None gives α/p_n as in the algorithm's first line.
      weight_decay, mask, l2: see `sgd`.
    """
    rule = _scale_by_printed(clusters, alpha, alpha_n, _algorithm_1)
    return optimizer_from(
        rule,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        mask=mask,
        l2=l2,
        num_clusters=clusters.num_clusters,
    )


def paper_discover_qhm(
    learning_rate: optax.ScalarOrSchedule,
    clusters: Clusters,
    *,
    alpha: Scalar,
    alpha_n: Scalar | None = None,
    nu: Scalar,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: Mask = None,
    l2: Scalar = 0.0,
) -> GroupTransformation:
    """Discover-QHM as printed.

    Its lines update a buffer twice in one step, to an index t + 2: h_n = g_n + α_n δ_n, ḡ ← ḡ + αΔ as in Algorithm 1,
    g_n ← ν h_n + (1 − ν) ĝ_n, and θ ← θ − μ(ḡ + Σ_n w_n (ĝ_n − h_n)) with the new ḡ. Arguments as for `paper_discover`;
    ν is the paper's ν (γ in its tables).
    """
    check_unit_interval("nu", nu)
    rule = _scale_by_printed(clusters, alpha, alpha_n, lambda *args: _discover_qhm(nu, *args))
    return optimizer_from(
        rule,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        mask=mask,
        l2=l2,
        num_clusters=clusters.num_clusters,
    )


def paper_discover_igt(
    learning_rate: optax.ScalarOrSchedule,
    clusters: Clusters,
    *,
    alpha: Scalar,
    alpha_n: Scalar | None = None,
    tail_fraction: Scalar | None = None,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: Mask = None,
    l2: Scalar = 0.0,
) -> GroupTransformation:
    """Discover-IGT as printed: one transported average v_t stands for the gradient of every cluster.

    v_t as in (T3) of `igt.py` for the whole batch; then Algorithm 1 with v_t in place of each gradient. Arguments
    as for `paper_discover` and `igt`.
    """
    rule = _on_the_mean(_scale_by_printed(clusters, alpha, alpha_n, _algorithm_1))
    inner = optimizer_from(
        rule,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        mask=mask,
        l2=0.0,
        num_clusters=clusters.num_clusters,
    )
    return transported(inner, tail_fraction, mask=mask, l2=l2, num_clusters=clusters.num_clusters)


def _scale_by_printed(clusters: Clusters, alpha: Scalar, alpha_n: Scalar | None, equations: Any) -> GroupTransformation:
    check_unit_interval("alpha", alpha)
    if alpha_n is not None:
        check_unit_interval("alpha_n", alpha_n)
    elif 0.0 in clusters.probs:
        raise ValueError(
            f"alpha_n = alpha / p_n needs p_n above 0, got 0 for cluster {clusters.probs.index(0.0)}; give alpha_n"
        )
    init = scale_by_discover(clusters).init  # the same state: ḡ and one buffer per cluster

    def rate(share, p):
        del share
        return alpha / p if alpha_n is None else jnp.full_like(p, alpha_n)

    def update(updates, state, params=None, *, cluster_ids=None, group_sizes=None, context=NO_CONTEXT, **_):
        del params
        num_groups = check_group_axis(updates, state.mean)
        ids = check_cluster_ids(cluster_ids, num_groups)
        sizes = None if group_sizes is None else check_group_sizes(group_sizes, num_groups)
        probs = jnp.asarray(clusters.probs, jnp.result_type(float))
        weights, _ = batch_weights(ids, sizes, probs, None, state.steps, correction=1.0, rate=rate)

        def printed(parameters):
            return [equations(alpha, weights, one) for one in parameters]

        direction, mean, buffers = map_parameters(printed, updates, state, context._replace(move=None))
        return direction, state._replace(mean=mean, buffers=buffers)

    return GroupTransformation(init, update)


class _Terms(NamedTuple):
    cluster_grads: jax.Array  # [G, ...], ĝ_n
    moved: jax.Array  # [G, ...], g_n + α_n δ_n
    share: jax.Array  # [G, 1, ...]
    delta: jax.Array  # [...], Δ


def _terms(weights: Weights, one: Parameter) -> _Terms:
    dtype = one.buffers.dtype

    def per_group(values):
        return values.astype(dtype).reshape(-1, *(1,) * (one.buffers.ndim - 1))

    offset = one.offset and one.offset._replace(vector=one.offset.vector[None])
    grads = jnp.where(per_group(weights.valid) > 0, with_offset(offset, one.grads.astype(dtype)), 0)
    old = one.buffers[weights.read_ids]
    cluster_grads = Stacked(dtype, False).by_cluster(weights.cluster_mean, grads)
    moved = old + per_group(weights.rate) * (cluster_grads - old)
    share = per_group(weights.share)
    return _Terms(cluster_grads, moved, share, jnp.sum(share * (grads - old), axis=0))


def _algorithm_1(alpha: Scalar, weights: Weights, one: Parameter) -> Result:
    terms = _terms(weights, one)
    direction = jnp.where(weights.active, one.mean + terms.delta, 0)
    return direction, one.mean + alpha * terms.delta, _written(weights, one, terms.moved)


def _discover_qhm(nu: Scalar, alpha: Scalar, weights: Weights, one: Parameter) -> Result:
    terms = _terms(weights, one)
    mean = one.mean + alpha * terms.delta
    step = mean + jnp.sum(terms.share * (terms.cluster_grads - terms.moved), axis=0)
    stored = nu * terms.moved + (1 - nu) * terms.cluster_grads
    return jnp.where(weights.active, step, 0), mean, _written(weights, one, stored)


def _written(weights: Weights, one: Parameter, new: jax.Array) -> jax.Array:
    return one.buffers.at[weights.write_ids].set(new, mode="drop", unique_indices=True)


def _on_the_mean(rule: GroupTransformation) -> GroupTransformation:
    """The rule, fed with the batch's mean gradient in place of each group's."""

    def update(updates, state, params=None, *, group_sizes=None, context=NO_CONTEXT, **extra):
        num_groups = check_group_axis(updates, params)
        mean, _ = mean_over_groups().update(updates, optax.EmptyState(), group_sizes=group_sizes, context=context)
        same = jax.tree.map(lambda m: jnp.broadcast_to(m, (num_groups, *m.shape)), mean)
        context = context._replace(offset=None)
        return rule.update(same, state, params, group_sizes=group_sizes, context=context, **extra)

    return GroupTransformation(rule.init, update)
