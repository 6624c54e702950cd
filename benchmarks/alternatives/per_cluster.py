"""Adam's two moments for every cluster: what trainers with several objectives do."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import discover
from benchmarks.alternatives.parts import rate_at


class PerClusterState(NamedTuple):
    """Adam's state, once for every cluster."""

    first: Any  # m_n; leaves [N, ...]
    second: Any  # v_n; leaves [N, ...]
    visits: jax.Array  # int32 [N], how often each was seen
    steps: jax.Array  # int32 []


def adam_per_cluster(
    learning_rate: optax.ScalarOrSchedule,
    clusters: discover.Clusters,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    l2: float = 0.0,
):
    """One Adam for each cluster: a batch takes the steps of the Adams whose clusters it holds, by their share of it."""
    return _per_cluster(learning_rate, clusters, beta1, beta2, eps, l2, everybody=False)


def adatask(
    learning_rate: optax.ScalarOrSchedule,
    clusters: discover.Clusters,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    l2: float = 0.0,
):
    """AdaTask's step (Yang et al. 2023, https://arxiv.org/abs/2211.15055): Σ pₙ times the Adam step of cluster n.

    The sum is over all clusters. AdaTask sees every task at every step. Here only those of a batch are new, and the
    others' moments are as they were.
    """
    return _per_cluster(learning_rate, clusters, beta1, beta2, eps, l2, everybody=True)


def _per_cluster(
    learning_rate: optax.ScalarOrSchedule,
    clusters: discover.Clusters,
    beta1: Any,
    beta2: Any,
    eps: Any,
    l2: Any,
    *,
    everybody: bool,
) -> optax.GradientTransformationExtraArgs:
    number, probs = clusters.num_clusters, jnp.asarray(clusters.probs, jnp.float32)

    def init(params: Any) -> PerClusterState:
        def empty() -> Any:
            return jax.tree.map(lambda p: jnp.zeros((number, *p.shape), p.dtype), params)

        return PerClusterState(empty(), empty(), jnp.zeros(number, jnp.int32), jnp.zeros((), jnp.int32))

    def update(
        updates: Any, state: PerClusterState, params: Any = None, *, cluster_ids: Any, group_sizes: Any, **_: Any
    ):
        belongs = (cluster_ids[None] == jnp.arange(number)[:, None]) * group_sizes  # [N, G], examples
        examples = belongs.sum(axis=1)
        seen, visits = examples > 0, state.visits + (examples > 0)
        weights = belongs / jnp.maximum(examples, 1)[:, None]
        by = probs if everybody else examples / jnp.maximum(examples.sum(), 1)

        def along(vector: jax.Array, like: jax.Array) -> jax.Array:
            return vector.reshape(number, *(1,) * (like.ndim - 1))

        def moment(old: jax.Array, groups: jax.Array, param: jax.Array, beta: Any, power: int) -> jax.Array:
            fresh = jnp.einsum("ng,g...->n...", weights, groups.astype(old.dtype)) + l2 * param
            return jnp.where(along(seen, old), beta * old + (1 - beta) * fresh**power, old)

        first = jax.tree.map(lambda *a: moment(*a, beta1, 1), state.first, updates, params)
        second = jax.tree.map(lambda *a: moment(*a, beta2, 2), state.second, updates, params)
        known = jnp.maximum(visits, 1)
        rate = rate_at(learning_rate, state.steps)

        def step(m: jax.Array, v: jax.Array) -> jax.Array:
            m, v = m / along(1 - beta1**known, m), v / along(1 - beta2**known, v)
            return -rate * jnp.tensordot(by, m / (jnp.sqrt(v) + eps), axes=1)

        moved = jax.tree.map(step, first, second)
        return moved, PerClusterState(first, second, visits, state.steps + 1)

    return optax.GradientTransformationExtraArgs(init, update)
