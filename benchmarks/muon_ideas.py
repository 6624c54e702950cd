"""Ways to bring Discover before Muon closer to shuffled batches, as optimizers to try: `muon_ideas:secant_muon`, …

    cd benchmarks && python muon_cifar.py settings.json --out $OUT    # with "optimizer": "muon_ideas:secant_muon"

None is part of the library: what each reached is in docs/notes/muon.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

import discover
from discover.context import NO_CONTEXT, GroupTransformation
from discover.damping import damped
from discover.direction import scale_by_discover
from discover.optimizers.compose import optimizer_from
from discover.optimizers.muon import scale_by_orthogonal
from discover.rule import with_offset


class SecantState(NamedTuple):
    """The buffers, where they hold, and each cluster's last change with the displacement that caused it."""

    mean: Any
    buffers: Any
    examples_seen: None
    points: jax.Array  # [N, P], θ_n: averaged at visits like the buffer
    moved: jax.Array  # [N, P], s_n = θ − θ_n at the last visit
    changed: jax.Array  # [N, P], y_n = ĝ_n − g_n at the last visit


def secant_direction(clusters: discover.Clusters, beta: Any, nu: Any, ridge: Any, trust: Any) -> GroupTransformation:
    """Discover's direction from buffers that were moved to where the parameters are now, by a multi-secant model."""
    number = clusters.num_clusters

    def init(params: Any) -> SecantState:
        flat = ravel_pytree(params)[0]
        each = jnp.zeros((number, flat.size))
        buffers = jax.tree.map(lambda p: jnp.zeros((number, *p.shape)), params)
        return SecantState(jax.tree.map(jnp.zeros_like, params), buffers, None, each + flat, each, each)

    def update(updates: Any, state: Any, params: Any = None, *, cluster_ids: Any, context: Any = NO_CONTEXT, **_: Any):
        if context.offset is not None:
            scale, factor, vector = context.offset
            leaves, tree = jax.tree.flatten(updates)
            vectors = tree.flatten_up_to(vector)
            offsets = [None if v is None else type(context.offset)(scale, factor, v) for v in vectors]
            updates = tree.unflatten([with_offset(o, g) for o, g in zip(offsets, leaves)])
        theta, unravel = ravel_pytree(params)
        grads = jax.vmap(lambda tree: ravel_pytree(tree)[0])(updates)
        old = jax.vmap(lambda tree: ravel_pytree(tree)[0])(state.buffers)
        probs = jnp.asarray(clusters.probs, jnp.float32)
        belongs = (cluster_ids[None] == jnp.arange(number)[:, None]).astype(jnp.float32)
        count = belongs.sum(1)
        share, seen = count / cluster_ids.shape[0], (count > 0)[:, None]
        average = (belongs / jnp.maximum(count, 1)[:, None]) @ grads

        displaced = theta[None] - state.points
        gram = state.moved @ state.moved.T
        least = ridge * jnp.trace(gram) / number + 1e-20
        weights = jnp.linalg.solve(gram + least * jnp.eye(number), state.moved @ displaced.T).T
        predicted = trust * (weights @ state.changed)

        raw = jnp.where(seen, average - old, 0)
        innovation = share @ jnp.where(seen, raw - predicted, 0)
        direction = probs @ (old + predicted) + (1 - nu * beta) * innovation
        rate = jnp.minimum(1, (1 - beta) * share / probs)[:, None]
        new = old + rate * raw
        after = SecantState(
            unravel(probs @ new),
            jax.vmap(unravel)(new),
            None,
            state.points + rate * jnp.where(seen, displaced, 0),
            jnp.where(seen, displaced, state.moved),
            jnp.where(seen, raw, state.changed),
        )
        return unravel(direction), after

    return GroupTransformation(init, update)


def secant_muon(
    learning_rate: Any,
    clusters: discover.Clusters,
    *,
    beta: float = 0.95,
    nu: float = 0.95,
    ridge: float = 1.0,
    trust: float = 1.0,
    damping: float | None = None,
    l2: float = 0.0,
    mask: Any = None,
) -> GroupTransformation:
    """Discover before Muon, with buffers that are moved to the present point before they are used."""
    rule = secant_direction(clusters, beta, nu, ridge, trust)
    if damping is not None:
        rule = damped(rule, clusters.probs, damping)
    return _before_muon(rule, (), learning_rate, clusters, l2, mask)


def smoothed_muon(
    learning_rate: Any,
    clusters: discover.Clusters,
    *,
    beta: float = 0.95,
    nu: float = 0.95,
    smooth: float = 0.9,
    damping: float | None = None,
    l2: float = 0.0,
    mask: Any = None,
) -> GroupTransformation:
    """Discover before Muon, with a momentum of its own for the direction between the two."""
    rule = scale_by_discover(clusters, beta, nu, damping=damping)
    return _before_muon(rule, (optax.ema(smooth),), learning_rate, clusters, l2, mask)


def _before_muon(
    rule: GroupTransformation, between: tuple, learning_rate: Any, clusters: discover.Clusters, l2: Any, mask: Any
) -> GroupTransformation:
    return optimizer_from(
        rule,
        *between,
        scale_by_orthogonal(),
        learning_rate=learning_rate,
        weight_decay=0.0,
        mask=mask,
        l2=l2,
        num_clusters=clusters.num_clusters,
    )
