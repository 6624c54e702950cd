r"""The rule of the Discover family: each of its methods is one setting of it.

A batch is G groups, a group belongs to one cluster, the optimizer gets one gradient per group. For group k:
cluster n_k, b_k examples, mean gradient ĝ_k. For each cluster n in the batch, w_n is its share of the batch's
examples, ĝ_n the mean gradient over them, g_n its buffer, and

    δ_n = ĝ_n − g_n,        Δ = Σ_n w_n δ_n,        ḡ = Σ_n p_n g_n   (over all clusters, always)

The rule:

    direction    d  = ḡ + (1 − νβ)·Δ                                                        (F1)
    buffers      g_n ← g_n + ρ_n·δ_n              for the clusters in the batch             (F2)
    mean         ḡ  ← ḡ + Σ_n p_n ρ_n δ_n         the same change, so ḡ = Σ p_n g_n stays   (F3)
    rate         ρ_n = min(1, (1 − β)·w_n/p_n)    "proportional"                            (F4)
                 ρ_n = 1 − β                      "per_visit"                               (F5)

(F3) never forgets a rounding error, so each number of ḡ is also summed afresh, Σ_n p_n g_n, once in `AFRESH` steps.

Equation 3 of the paper is (F1) with ν = 0; `docs/family.md` has the reductions and the reading of the rest.

The same lines serve arrays [G, ...] and the inside of a GPU kernel, where a group's numbers are variables of their
own: what differs between the two is an `OverGroups`. Which of them runs is decided in `gpu/`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from discover.context import Offset, Scalar, with_offset

Rate = Callable[[jax.Array, jax.Array], jax.Array]
"""ρ_n from (w_n, p_n)."""


def proportional_rate(beta: Scalar) -> Rate:
    """(F4): ρ_n = min(1, (1 − β)·w_n/p_n)."""
    return lambda share, p: jnp.minimum(1, (1 - beta) * share / jnp.maximum(p, jnp.finfo(p.dtype).tiny))


def per_visit_rate(beta: Scalar) -> Rate:
    """(F5): ρ_n = 1 − β."""
    return lambda share, p: jnp.full_like(p, 1 - beta)


AFRESH = 512
"""Steps in which every number of ḡ is summed afresh once."""
RATES = {"proportional": proportional_rate, "per_visit": per_visit_rate}


class Weights(NamedTuple):
    """The scalars of one step: (F1) to (F5) without the gradients, shared by all parameters."""

    read_ids: Any  # int32 [G], the buffer that each group looks at
    write_ids: Any  # int32 [G], the same for one group of each cluster, elsewhere out of range
    valid: Any  # bool [G], the groups that count
    active: Any  # bool [], whether the batch has an example at all
    share: Any  # [G], b_k / |B|
    correction: Any  # [], 1 − νβ
    cluster_mean: Any  # [G, G], averages the groups of group k's cluster: ĝ_n from the ĝ_k
    rate: Any  # [G], ρ_n of the group's cluster
    mean_keep: Any  # [], factor on ḡ: 1 unless the probabilities are estimated
    mean_old: Any  # [G], weight of the old buffers in ḡ, once a cluster
    mean_new: Any  # [G], weight p_n of the new buffers in ḡ, once a cluster
    gain: Any  # [G], ρ_n times the group's share of its cluster's examples in the batch: those of a cluster sum to ρ_n
    mean_gain: Any  # [G], p_n times it
    mean_rise: Any  # [G], by how much p_n grows, once a cluster; None where it is given
    probs: Any  # [N], p_n of all clusters
    turn: Any  # int32 [], which part of ḡ is summed afresh, of `AFRESH`; −1: none; None: never, by this update
    step: Any  # int32 [], counts the steps
    clusters: Any  # int32 [G], the group's cluster, 0 for one that does not count


def batch_weights(
    cluster_ids: jax.Array,
    group_sizes: jax.Array | None,
    probs: jax.Array,
    examples_seen: jax.Array | None,
    step: jax.Array,
    *,
    correction: Scalar,
    rate: Rate,
) -> tuple[Weights, jax.Array | None]:
    """The scalars of one step, and the new count of examples seen (None when p_n is given).

    Args:
      cluster_ids: int [G].
      group_sizes: [G], or None when all groups are of one size.
      probs: [N], p_n.
      examples_seen: [2, N] to estimate p_n from, a sum and what it lost to rounding, or None to take `probs`.
      step: int [], counts the steps.
      correction: the factor on Δ in the direction, 1 − νβ.
      rate: ρ_n from (w_n, p_n).
    """
    num_groups, num_clusters, dtype = cluster_ids.shape[0], probs.shape[0], probs.dtype
    sizes = jnp.ones(num_groups, dtype) if group_sizes is None else group_sizes.astype(dtype)
    valid = known_clusters(cluster_ids, num_clusters) & (sizes > 0)
    sizes = jnp.where(valid, sizes, 0)
    ids = cluster_ids.astype(jnp.int32)
    read_ids = jnp.where(valid, ids, 0)

    total = jnp.sum(sizes)
    share = sizes / jnp.where(total > 0, total, 1)
    same = (ids[:, None] == ids[None, :]) & valid[:, None] & valid[None, :]
    cluster_share = jnp.sum(jnp.where(same, share[None, :], 0), axis=1)  # w_n
    first = valid & ~jnp.any(jnp.tril(same, -1), axis=1)  # one group speaks for its cluster

    p_is_given = examples_seen is None
    if p_is_given:
        p = probs[read_ids]
        p_still_in_mean, mean_keep = p, jnp.ones((), dtype)
    else:
        # With s_n examples seen before and c_n now, p_n = (s_n + c_n)/(S + C) = S/(S+C)·(s_n/S) + c_n/(S+C):
        # all clusters shrink by one factor and only those of the batch gain, so ḡ can follow the new
        # probabilities without a look at the other buffers.
        seen_before = jnp.sum(examples_seen)
        seen_after = seen_before + jnp.where(total > 0, total, 1)
        examples_seen = _counted(examples_seen, jnp.zeros(num_clusters, dtype).at[read_ids].add(sizes))
        probs = jnp.sum(examples_seen, axis=0) / seen_after
        p = probs[read_ids]
        p_still_in_mean = p - cluster_share * total / seen_after
        mean_keep = jnp.where(total > 0, seen_before / seen_after, 1)

    ρ = jnp.where(valid, rate(cluster_share, p), 0)
    gain = ρ * share / jnp.where(cluster_share > 0, cluster_share, 1)
    weights = Weights(
        read_ids=read_ids,
        # Out of range and all different: a scatter drops them, and may be told that no index repeats.
        write_ids=jnp.where(first, ids, num_clusters + jnp.arange(num_groups, dtype=jnp.int32)),
        valid=valid,
        active=total > 0,
        share=share,
        correction=jnp.asarray(correction, dtype),
        cluster_mean=jnp.where(same, share[None, :] / jnp.where(cluster_share > 0, cluster_share, 1)[:, None], 0),
        rate=ρ,
        mean_keep=mean_keep,
        mean_old=jnp.where(first, p_still_in_mean, 0),
        mean_new=jnp.where(first, p, 0),
        gain=gain,
        mean_gain=p * gain,
        mean_rise=None if p_is_given else jnp.where(first, p - p_still_in_mean, 0),
        probs=probs,
        turn=jnp.where(total > 0, step % AFRESH, -1),
        step=step,
        clusters=read_ids,
    )
    return weights, examples_seen


def _counted(seen: jax.Array, new: jax.Array) -> jax.Array:
    """[2, N] with [N] added, and what that loses to rounding kept: float32 alone stops counting at 2²⁴."""
    total = seen[0] + new
    return jnp.stack([total, seen[1] + (new - (total - seen[0]))])


def known_clusters(cluster_ids: jax.Array, num_clusters: int) -> jax.Array:
    """Which ids lie in 0..N−1, before they are cut to 32 bits."""
    return (cluster_ids >= 0) & (cluster_ids < num_clusters)


class OverGroups(Protocol):
    """Values of all groups: one array [G, ...], or a list of G arrays."""

    @property
    def adds(self) -> bool:
        """Whether each group adds its part to its cluster's buffer, or one group of each cluster writes the new one."""
        ...

    def each(self, function: Callable[..., jax.Array], *values: Any) -> Any:
        """`function` of each group's values."""
        ...

    def sum(self, values: Any) -> jax.Array:
        """Σ_k."""
        ...

    def weighted_sum(self, weights: Any, values: Any) -> jax.Array:
        """Σ_k w_k v_k."""
        ...

    def by_cluster(self, cluster_mean: Any, grads: Any) -> Any:
        """For each group ĝ_n, the mean gradient over all the batch's examples of its cluster."""
        ...

    def everywhere(self, value: jax.Array) -> Any:
        """The same value for each group."""
        ...

    def stored(self, values: Any, weights: Any) -> tuple[Any, Any]:
        """What the buffers hold of the values, and the values that this stands for; `weights` are theirs in ḡ."""
        ...


def apply_rule(
    weights: Weights, grads: Any, mean: jax.Array, old: Any, offset: Offset | None, groups: OverGroups
) -> tuple[jax.Array, jax.Array, Any]:
    """(F1) to (F3).

    Args:
      weights: the scalars of this step; what is [G] there comes in the form of `groups`.
      grads: ĝ_k of each group, in the form of `groups`.
      mean: ḡ.
      old: g_n of each group's cluster, in the form of `groups`.
      offset: what the gradients go through first.
      groups: arithmetic over the groups.

    Returns:
      d; ḡ; and for each group what is added to its cluster's buffer (`groups.adds`), or stored in its place.
    """
    # A group that does not count may hold anything, NaN included: it is cut out, not multiplied by zero.
    grads = groups.each(lambda valid, ĝ: jnp.where(valid, with_offset(offset, ĝ), 0), weights.valid, grads)
    own = groups.each(lambda ĝ, g: ĝ - g, grads, old)
    innovation = groups.weighted_sum(weights.share, own)
    direction = jnp.where(weights.active, mean + weights.correction * innovation, 0)
    mean = weights.mean_keep * mean

    # Where a number of the batch is not finite no buffer moves: zero times NaN would bring it to all clusters.
    finite = jnp.isfinite(innovation)
    everywhere = groups.everywhere(finite)
    if groups.adds:  # the groups of a cluster add up to ρ_n δ_n
        change = jnp.where(finite, groups.weighted_sum(weights.mean_gain, own), 0)
        if weights.mean_rise is not None:
            change += groups.weighted_sum(weights.mean_rise, old)
        return direction, mean + change, groups.each(_part, everywhere, weights.gain, own)

    # Groups of the same cluster all compute that cluster's new buffer; one of them writes it.
    averages = groups.by_cluster(weights.cluster_mean, grads)
    new = groups.each(lambda ok, ρ, ĝ, g: jnp.where(ok, g + ρ * (ĝ - g), g), everywhere, weights.rate, averages, old)
    stored, new = groups.stored(new, weights.mean_new)
    # From the buffers as stored: that is what keeps ḡ = Σ p_n g_n.
    change = groups.sum(groups.each(_change_of_mean, weights.mean_new, new, weights.mean_old, old))
    return direction, mean + change, stored


def _part(finite: Any, gain: Any, own: Any) -> Any:
    return jnp.where(finite, gain * own, 0)


def _change_of_mean(p_new: Any, new: Any, p_old: Any, old: Any) -> Any:
    return p_new * new - p_old * old
