r"""Damping: shorter steps along the directions in which the clusters disagree.

The gradients of different clusters differ most along a few directions, and along these the loss is most curved
(Papyan 2019). The buffers know them. For each parameter, with the buffers after the step, U has the rows

    u_n = √p_n·(g_n − ḡ),        n = 1 … N

and the direction d of (F1) becomes, before anything else is done with it,

    d ← d − Uᵀ(λI + UUᵀ)⁻¹U d,        λ = κ·trace(UUᵀ)/N                                    (D1)

which is d·λ/(λ + σ²) along a left singular vector of Uᵀ of singular value σ, and d elsewhere. κ → ∞ changes nothing.

It reads the buffers of all N clusters, which the rule never does. UUᵀ and Ud are sums over the numbers of a parameter,
N² and N of them, and what they say is N factors: of a parameter of more than 2¹⁸ numbers a part of them will
do, and is taken (`sample.py`). With many clusters, let a few take part at each step, in turn.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from discover import quantized
from discover.checks import check_at_least
from discover.context import NO_CONTEXT, GroupTransformation, Scalar
from discover.gpu import damping_kernel, device
from discover.gpu.rows import parts_of
from discover.rule import known_clusters
from discover.sample import BLOCK, Sample, sample_of


class Product(NamedTuple):
    """What (D1) needs to know of a parameter, before the probabilities come in."""

    gram: jax.Array  # [k, k], (g_n − ḡ)·(g_m − ḡ)
    along: jax.Array  # [k], (g_n − ḡ)·d
    mean: jax.Array  # [], ḡ·ḡ


def damp(
    direction: Any,
    mean: Any,
    buffers: Any,
    probs: jax.Array,
    strength: Scalar,
    rows: jax.Array | None = None,
    *,
    in_slices: bool = False,
) -> Any:
    """(D1) for a tree of parameters, each with a U of its own.

    Nothing changes, exactly, where κ is infinite or all buffers are ḡ. Those that differ from ḡ by rounding count as
    equal to it: λ is never below the square of what rounding makes of ḡ.

    Args:
      direction: d, leaves like the parameters.
      mean: ḡ, the same.
      buffers: g_n, leaves [N, ...] or `Quantized`.
      probs: p_n of the k clusters that take part, [k].
      strength: κ, at least 0.
      rows: which clusters those are, int [k]; None: all.
      in_slices: the parameters are cut over several devices.
    """
    leaves, tree = jax.tree.flatten(direction)
    parameters = list(
        zip(leaves, jax.tree.leaves(mean), jax.tree.leaves(buffers, is_leaf=quantized.is_quantized), strict=True)
    )
    if not parameters:
        return direction
    ids = jnp.arange(probs.shape[0], dtype=jnp.int32) if rows is None else rows.astype(jnp.int32)

    def plain() -> list[jax.Array]:
        centred = [_centred(m, g if rows is None else jax.tree.map(lambda b: b[ids], g)) for _, m, g in parameters]
        products = [_product(d, m, u, in_slices) for (d, m, _), u in zip(parameters, centred)]
        weights = _weights(products, probs, strength, _solved)
        return [_without(d, u, c) for (d, _, _), u, c in zip(parameters, centred, weights)]

    def in_kernels() -> list[jax.Array]:
        flat = [damping_kernel.Flat(d.reshape(-1), m.reshape(-1), parts_of(g, m.size)) for d, m, g in parameters]
        products = [Product(*each) for each in damping_kernel.products(ids, probs if rows is None else None, flat)]
        weights = _weights(products, probs, strength, damping_kernel.solve)
        of_mean = -jnp.sum(weights, axis=1)
        if rows is None:  # ḡ = Σ p_n g_n
            weights, of_mean = weights + of_mean[:, None] * probs.astype(weights.dtype)[None], None
        return [new.reshape(d.shape) for d, new in zip(leaves, damping_kernel.subtract(ids, weights, of_mean, flat))]

    has_kernel = len(ids) <= damping_kernel.MAX_CLUSTERS and not in_slices
    has_kernel &= all(d.dtype == m.dtype == jnp.float32 and d.size for d, m, _ in parameters)
    return tree.unflatten(device.by_device(cpu=plain, gpu=in_kernels if has_kernel else plain, other=plain))


def _centred(mean: jax.Array, buffers: Any) -> jax.Array:
    """g_n − ḡ, [k, ...]."""
    return quantized.values_of(buffers, mean) - mean[None]


def _product(direction: jax.Array, mean: jax.Array, centred: jax.Array, in_slices: bool) -> Product:
    sample, direction = sample_of(mean.size), direction.astype(centred.dtype)
    if sample.stride > 1 and in_slices:  # what is cut over devices is not put in another order
        taken = sample.takes(_places(mean.shape))
        direction, mean, centred = (jnp.where(taken, x, 0) for x in (direction, mean, centred))
    elif sample.stride > 1:
        direction, mean = _taken(sample, direction[None])[0], _taken(sample, mean[None])[0]
        centred = _taken(sample, centred)
    along = _over_numbers(centred, direction[None])[:, 0]
    return Product(_over_numbers(centred, centred), along, jnp.sum(jnp.square(mean)))


def _taken(sample: Sample, rows: jax.Array) -> jax.Array:
    """The numbers of the sample, [k, count, BLOCK] from [k, ...]."""
    whole = rows.reshape(rows.shape[0], -1)[:, : sample.stride * sample.blocks * BLOCK]
    return whole.reshape(rows.shape[0], -1, BLOCK)[:, sample.block(np.arange(sample.blocks))]


def _places(shape: tuple[int, ...]) -> jax.Array:
    """Where each number of a parameter stands, counted along its last axis first."""
    places = jnp.zeros(shape, jnp.int32)
    for axis, length in enumerate(shape):
        places = places * length + jax.lax.broadcasted_iota(jnp.int32, shape, axis)
    return places


def _over_numbers(left: jax.Array, right: jax.Array) -> jax.Array:
    """All products of the rows of [N, ...] and [M, ...], [N, M]; axes stay as they are, as they may be sharded."""
    axes = tuple(range(1, left.ndim))
    return jnp.tensordot(left, right, (axes, axes), precision=jax.lax.Precision.HIGHEST)


def _without(direction: jax.Array, centred: jax.Array, weights: jax.Array) -> jax.Array:
    """d − Σ_n c_n (g_n − ḡ)."""
    removed = jnp.tensordot(weights.astype(centred.dtype), centred, 1, precision=jax.lax.Precision.HIGHEST)
    return (direction - removed).astype(direction.dtype)


def _weights(
    products: Sequence[Product],
    probs: jax.Array,
    strength: Scalar,
    solve: Callable[[jax.Array, jax.Array], jax.Array],
) -> jax.Array:
    """c_n = √p_n·[(λI + UUᵀ)⁻¹Ud]_n of each parameter, [L, k]; 0 where U is 0. The systems are solved together.

    As (I + UUᵀ/λ)⁻¹Ud/λ, so that an infinite λ is a zero. λ is at least what rounding makes of UUᵀ.
    """
    dtype = jnp.result_type(*(product.gram for product in products))
    gram, along, mean = (jnp.stack([jnp.asarray(part, dtype) for part in parts]) for parts in zip(*products))
    root, size, eps = jnp.sqrt(probs).astype(dtype), gram.shape[-1], jnp.finfo(dtype).eps
    gram, along = gram * (root[:, None] * root[None])[None], along * root[None]
    noise = mean * (16 * eps) ** 2  # the square of how far rounding takes buffers from ḡ that would be equal to it
    trace = jnp.trace(gram, axis1=1, axis2=2)
    least = jnp.maximum(jnp.asarray(strength, dtype) / size, 16 * eps)
    ridge = jnp.maximum(least * jnp.where(trace > 0, trace, 1), noise)
    inverse = jnp.where(trace > 0, 1 / ridge, 0)
    system = jnp.eye(size, dtype=dtype)[None] + gram * inverse[:, None, None]
    return solve(system, along * inverse[:, None]) * root[None]


def _solved(systems: jax.Array, right: jax.Array) -> jax.Array:
    """A⁻¹b for A [L, k, k] and b [L, k]."""
    factor = jnp.linalg.cholesky(systems)
    return jax.scipy.linalg.cho_solve((factor, True), right[..., None])[..., 0]


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
      num_clusters: how many clusters take part at a step at most, in turn; None: all.

    Raises:
      ValueError: if κ is below 0, or the number is no whole one of at least 1.
    """
    check_at_least("damping", strength, 0)
    total = len(probs)
    if num_clusters is not None and (not isinstance(num_clusters, int) or num_clusters < 1):
        raise ValueError(f"damping_clusters must be a whole number of at least 1, got {num_clusters}")
    taking_part = total if num_clusters is None else min(num_clusters, total)
    if total == 1:  # its buffer is ḡ
        return rule

    def init(params):
        return DampedState(rule.init(params), jnp.zeros((), jnp.int32))

    def update(updates, state, params=None, *, context=NO_CONTEXT, **extra):
        direction: Any
        after: Any
        context = context._replace(move=None)  # the direction is not what the parameters move along
        direction, after = rule.update(updates, state.rule, params, context=context, **extra)
        seen, given = after.examples_seen, jnp.asarray(probs, jnp.result_type(float))
        p = given if seen is None else jnp.sum(seen, axis=0) / jnp.maximum(jnp.sum(seen), 1)
        in_slices = context.slices is not None and context.slices.mesh.size > 1
        if taking_part == total:
            direction = damp(direction, after.mean, after.buffers, p, strength, in_slices=in_slices)
            return direction, DampedState(after, state.next)
        rows = (state.next + jnp.arange(taking_part)) % total
        # Each stands for N/k of them, so that UUᵀ is as large as that of all.
        share = taking_part / total
        direction = damp(
            direction,
            after.mean,
            after.buffers,
            p[rows] / share,
            share * jnp.asarray(strength),
            rows,
            in_slices=in_slices,
        )
        counts = known_clusters(jnp.asarray(extra["cluster_ids"]), total)
        if extra.get("group_sizes") is not None:
            counts &= jnp.asarray(extra["group_sizes"]) > 0
        following = jnp.where(jnp.any(counts), (state.next + taking_part) % total, state.next)
        return direction, DampedState(after, following)

    return GroupTransformation(init, update)
