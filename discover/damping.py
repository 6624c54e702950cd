r"""Damping: shorter steps along the directions in which the clusters disagree.

The gradients of different clusters differ most along a few directions, and along these the loss is most curved
(Papyan 2019). The buffers know them. For each parameter, with the buffers after the step, U has the rows

    u_n = √p_n·(g_n − ḡ),        n = 1 … N

and the direction d of (F1) becomes, before anything else is done with it,

    d ← d − Uᵀ(λI + UUᵀ)⁻¹U d,        λ = κ·trace(UUᵀ)/N                                    (D1)

which is d·λ/(λ + σ²) along a left singular vector of Uᵀ of singular value σ, and d elsewhere. κ → ∞ changes nothing.

It reads the buffers of all N clusters, which the rule never does, and takes N² products a number of the parameters:
with many clusters, let a few take part at each step, in turn.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from discover.checks import check_at_least
from discover.context import NO_CONTEXT, GroupTransformation, Scalar
from discover.rule import known_clusters


def damp(direction: Any, mean: Any, buffers: Any, probs: jax.Array, strength: Scalar) -> Any:
    """(D1) for a tree of parameters, each with a U of its own.

    Nothing changes, exactly, where κ is infinite or all buffers are ḡ. Those that differ from ḡ by rounding count as
    equal to it: λ is never below the square of what rounding makes of ḡ.

    Args:
      direction: d, leaves like the parameters.
      mean: ḡ, the same.
      buffers: g_n, leaves [N, ...].
      probs: p_n, [N].
      strength: κ, at least 0.
    """
    leaves, tree = jax.tree.flatten(direction)
    centred = [_centred(g, m, probs) for g, m in zip(jax.tree.leaves(buffers), jax.tree.leaves(mean), strict=True)]
    if not leaves:
        return direction
    # One small system for each parameter; they are solved together.
    dtype = jnp.result_type(*centred)
    gram = jnp.stack([_over_numbers(u, u).astype(dtype) for u in centred])
    along = jnp.stack([_over_numbers(u, d.astype(u.dtype)[None])[:, 0].astype(dtype) for u, d in zip(centred, leaves)])
    noise = jnp.stack([_rounding(m).astype(dtype) for m in jax.tree.leaves(mean)])
    weights = _solved(gram, along, noise, jnp.asarray(strength, dtype))

    def without(d, u, x):
        return (d - jnp.tensordot(x.astype(u.dtype), u, 1, precision=jax.lax.Precision.HIGHEST)).astype(d.dtype)

    return tree.unflatten([without(d, u, x) for d, u, x in zip(leaves, centred, weights)])


def _centred(buffers: jax.Array, mean: jax.Array, probs: jax.Array) -> jax.Array:
    """U, [N, ...]."""
    column = jnp.sqrt(probs).astype(mean.dtype).reshape(-1, *(1,) * mean.ndim)
    return column * (buffers.astype(mean.dtype) - mean[None])


def _over_numbers(left: jax.Array, right: jax.Array) -> jax.Array:
    """All products of the rows of [N, ...] and [M, ...], [N, M]; axes stay as they are, as they may be sharded."""
    axes = tuple(range(1, left.ndim))
    return jnp.tensordot(left, right, (axes, axes), precision=jax.lax.Precision.HIGHEST)


def _rounding(mean: jax.Array) -> jax.Array:
    """The square of how far rounding takes buffers from ḡ that would be equal to it."""
    return jnp.sum(jnp.square(mean * (16 * jnp.finfo(mean.dtype).eps)))


def _solved(gram: jax.Array, along: jax.Array, noise: jax.Array, strength: jax.Array) -> jax.Array:
    """(λI + UUᵀ)⁻¹Ud for each parameter, [L, N], from UUᵀ [L, N, N] and Ud [L, N]; 0 where U is 0.

    As (I + UUᵀ/λ)⁻¹Ud/λ, so that an infinite λ is a zero. λ is at least what rounding makes of UUᵀ.
    """
    size, eps = gram.shape[-1], jnp.finfo(gram.dtype).eps
    trace = jnp.trace(gram, axis1=1, axis2=2)
    ridge = jnp.maximum(jnp.maximum(strength / size, 16 * eps) * jnp.where(trace > 0, trace, 1), noise)
    inverse = jnp.where(trace > 0, 1 / ridge, 0)
    system = jnp.eye(size, dtype=gram.dtype)[None] + gram * inverse[:, None, None]
    factor = jnp.linalg.cholesky(system)
    return jax.scipy.linalg.cho_solve((factor, True), (along * inverse[:, None])[..., None])[..., 0]


class DampedState(NamedTuple):
    """The rule's state, and whose turn it is."""

    rule: Any  # its `DiscoverState`
    next: jax.Array  # int32 [], the first cluster that takes part at the next step


def damped(
    rule: GroupTransformation, probs: Any, strength: Scalar, num_clusters: int | None = None
) -> GroupTransformation:
    """`scale_by_discover` with (D1) after it; with one cluster the rule itself.

    Args:
      rule: `scale_by_discover`.
      probs: its p_n.
      strength: κ, at least 0.
      num_clusters: how many clusters take part at a step, in turn; None: all.

    Raises:
      ValueError: if κ is below 0, or the number is none of 1 … N.
    """
    check_at_least("damping", strength, 0)
    total = len(probs)
    taking_part = total if num_clusters is None else num_clusters
    if not isinstance(taking_part, int) or not 1 <= taking_part <= total:
        raise ValueError(f"damping_clusters must be a whole number in 1 to {total}, the clusters, got {num_clusters}")
    if total == 1:  # its buffer is ḡ
        return rule

    def init(params):
        return DampedState(rule.init(params), jnp.zeros((), jnp.int32))

    def update(updates, state, params=None, *, context=NO_CONTEXT, **extra):
        direction: Any
        after: Any
        context = context._replace(move=None)  # the direction is not what the parameters move along
        direction, after = rule.update(updates, state.rule, params, context=context, **extra)
        seen = after.examples_seen
        p = jnp.asarray(probs, jnp.result_type(float)) if seen is None else seen / jnp.maximum(jnp.sum(seen), 1)
        if taking_part == total:
            return damp(direction, after.mean, after.buffers, p, strength), DampedState(after, state.next)
        rows = (state.next + jnp.arange(taking_part)) % total
        some = jax.tree.map(lambda g: g[rows], after.buffers)
        # Each stands for N/k of them, so that UUᵀ is as large as that of all.
        share = taking_part / total
        direction = damp(direction, after.mean, some, p[rows] / share, share * jnp.asarray(strength))
        counts = known_clusters(jnp.asarray(extra["cluster_ids"]), total)
        if extra.get("group_sizes") is not None:
            counts &= jnp.asarray(extra["group_sizes"]) > 0
        following = jnp.where(jnp.any(counts), (state.next + taking_part) % total, state.next)
        return direction, DampedState(after, following)

    return GroupTransformation(init, update)
