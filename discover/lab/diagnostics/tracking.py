r"""The between-cluster variance along a training run, for every optimizer, from gradients of fresh examples.

The paper estimates, at each step and with $g_n(θ_{t+1})$ standing in for $g_n(θ^*)$,

    SGD                 Σ p_n‖g_n‖²
    Momentum, Discover  (2/|B|)·Σ p_n‖buffer_n − g_n‖²     (Momentum: the same buffer for every cluster)

`between_cluster` computes these, and beside them what the batches as they are drawn (G cluster-pure groups) really
contain: $E‖Σ_n (w_n − p_n)(g_n − buffer_n)‖²$, w a batch's shares of the clusters, and the same without buffers. For
clusters drawn independently that is $\frac1G Σ p_n‖(g_n − buffer_n) − (g − \bar g)‖²$. Each cluster's gradient comes in
two independent halves, so the latter are unbiased: no noise of the measurement is counted as variance.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from discover import DiscoverState
from discover.gpu.host_memory import is_on_host
from discover.optimizers.plain import QhmState
from discover.quantized import all_values

__all__ = ["BetweenCluster", "between_cluster", "find_buffers"]


class BetweenCluster(NamedTuple):
    """The between-cluster variance at one step, float32 scalars."""

    paper: jax.Array  # the paper's estimate for this optimizer, with its own buffers
    paper_sgd: jax.Array  # the paper's estimate for SGD at the same parameters
    drawn: jax.Array  # as batches are drawn, with the optimizer's cluster buffers; unbiased
    drawn_plain: jax.Array  # as batches are drawn, without any; unbiased
    signal: jax.Array  # ‖g‖²; unbiased


class _Buffers(NamedTuple):
    per_cluster: Any  # leaves [N, ...] or None
    shared: Any  # leaves [...], ḡ of Discover or the momentum; None for an optimizer without either


def find_buffers(opt_state: Any) -> _Buffers:
    """The cluster buffers and their mean (Discover), or the one momentum buffer, wherever they sit in the state.

    Discover with a single cluster (on shuffled batches) has one buffer only, as Momentum has.
    """

    def known(node: Any) -> bool:
        return isinstance(node, DiscoverState | QhmState)

    for node in jax.tree.leaves(opt_state, is_leaf=known):
        if isinstance(node, DiscoverState):
            if is_on_host(node.buffers):
                raise ValueError("to track the variance optimizer.buffers must be 'device', got 'host'")
            if jax.tree.leaves(node.buffers)[0].shape[0] == 1:  # one buffer for everything: that is momentum
                return _Buffers(None, node.mean)
            return _Buffers(all_values(node.buffers, node.mean), node.mean)
        if isinstance(node, QhmState):
            return _Buffers(None, node.momentum)
    return _Buffers(None, None)


def between_cluster(
    opt_state: Any,
    halves: Any,
    probs: jax.Array,
    *,
    num_groups: int,
    batch_size: int,
    factor: jax.Array | None = None,
) -> BetweenCluster:
    r"""The between-cluster variance at the parameters where `halves` was taken; pure, for `jit` and `vmap`.

    Args:
      opt_state: the state of any optimizer of this library.
      halves: gradients with leaves `[2, N, ...]`: every cluster's mean gradient from two independent sets of examples.
      probs: `[N]`, p_n.
      num_groups: G, groups in a training batch; |B| for shuffled batches, whose examples are drawn one by one.
      batch_size: |B|, examples in a training batch.
      factor: `[R, N]` of `batches.composition_factor`, for batches that do not draw their clusters independently (then
        `num_groups` plays no part).
    """
    leaves = jax.tree.leaves(halves)
    num_clusters = probs.shape[0]
    if not leaves or any(leaf.shape[:2] != (2, num_clusters) for leaf in leaves):
        shapes = [leaf.shape for leaf in leaves][:3]
        raise ValueError(f"halves must have leaves [2, {num_clusters}, ...], got shapes {shapes}")
    own, shared = find_buffers(opt_state)
    own_leaves: list[Any] = [None] * len(leaves) if own is None else jax.tree.leaves(own)
    shared_leaves: list[Any] = [None] * len(leaves) if shared is None else jax.tree.leaves(shared)
    if own is not None and own_leaves[0].shape[0] != num_clusters:
        raise ValueError(f"the optimizer has {own_leaves[0].shape[0]} clusters, got {num_clusters} probabilities")

    def noise(left: jax.Array) -> jax.Array:
        """What batches contain of the clusters' deviations `[2, N, P]` from a common centre, over draws."""
        if factor is None:
            return probs @ jnp.sum(left[0] * left[1], axis=1) / num_groups
        mixed = jnp.einsum("rn,hnp->hrp", factor, left)
        return jnp.sum(mixed[0] * mixed[1])

    paper = sgd = drawn = plain = signal = jnp.zeros((), jnp.float32)
    for grads, buffers, buffer in zip(leaves, own_leaves, shared_leaves):
        grads = grads.astype(jnp.float32).reshape(2, num_clusters, -1)
        centre = jnp.mean(grads, axis=0)
        overall = jnp.einsum("n,hnp->hp", probs, grads)
        flat = None if buffer is None else buffer.astype(jnp.float32).reshape(1, -1)
        per_cluster = None if buffers is None else buffers.astype(jnp.float32).reshape(num_clusters, -1)
        sgd += probs @ jnp.sum(centre**2, axis=1)
        signal += overall[0] @ overall[1]
        apart = grads - overall[:, None]
        plain += noise(apart)
        if per_cluster is not None and flat is not None:
            paper += probs @ jnp.sum((per_cluster - centre) ** 2, axis=1)
            drawn += noise(apart - (per_cluster - flat))
        elif flat is not None:
            paper += probs @ jnp.sum((flat - centre) ** 2, axis=1)
    paper = sgd if shared is None else 2.0 / batch_size * paper
    # One buffer for all clusters cancels: the fresh part of a momentum step is as noisy as SGD's.
    return BetweenCluster(paper, sgd, drawn if own is not None else plain, plain, signal)
