r"""The rule of the Discover family: every other method here is one setting of it.

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

Equation 3 of the paper is (F1) with ν = 0; `docs/family.md` has the reductions and the reading of the rest.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from discover._context import in_slices
from discover.checks import (
    check_choice,
    check_cluster_ids,
    check_group_axis,
    check_group_sizes,
    check_unit_interval,
    is_zero,
    refuse_optax_wrappers,
)
from discover.clusters import Clusters
from discover.gpu import device as accelerator
from discover.gpu import update_kernel
from discover.gpu.joining import Move, Parameter, Result, map_parameters, small_ones_together

FEW_CLUSTERS = 6


class DiscoverState(NamedTuple):
    """What the rule remembers. Invariant: `mean` = Σ_n p_n · `buffers`[n], to rounding."""

    mean: Any  # ḡ; leaves shaped like the parameters, float32 or wider
    buffers: Any  # g_n; leaves [N, ...], in `buffer_dtype`
    examples_seen: Any  # float [N], examples seen of each cluster; None unless p_n is estimated


class Affine(NamedTuple):
    """What every group's gradient becomes before anything else, without being formed: `scale`·ĝ_k + `offset`.

    A penalty on the parameters adds the same vector to all groups, and so does gradient transport.
    """

    scale: Any  # [], or a number
    offset: Any  # leaves like the parameters


class Moves(NamedTuple):
    """Asks for the moved parameters in place of the direction: θ − `rate`·(d + `decay`·θ).

    Every group's gradient is taken plus `penalty`·θ. Only where `moves_in_kernels`.
    """

    penalty: Any  # [], or a number
    decay: Any
    rate: Any
    chosen: Any  # tree of booleans, the parameters that have penalty and decay

    def of_each(self, params: Any) -> list[Move]:
        """What to ask for each parameter."""
        numbers = jnp.stack([jnp.asarray(n, jnp.float32) for n in (self.penalty, self.decay, self.rate)])
        penalised, decays = not is_zero(self.penalty), not is_zero(self.decay)
        each = zip(jax.tree.leaves(params), jax.tree.leaves(self.chosen), strict=True)
        return [Move(param, numbers, bool(on) and penalised, bool(on) and decays) for param, on in each]


class GroupTransformation(optax.GradientTransformationExtraArgs):
    """A transformation of groups whose update also takes `affine`, an `Affine` or None.

    It may have a `step`, which takes the arguments of its update and returns the moved parameters and the state.
    """

    step: Callable[..., tuple[Any, Any]] | None = None  # see `stepping.take_step`


class BatchWeights(NamedTuple):
    """The scalars of one step: (F1) to (F5) without the gradients, shared by all parameters."""

    read_ids: jax.Array  # int32 [G], the buffer that each group looks at
    write_ids: jax.Array  # int32 [G], the same for one group of each cluster, elsewhere out of range
    valid: jax.Array  # bool [G], the groups that count
    active: jax.Array  # bool [], whether the batch has an example at all
    share: jax.Array  # [G], b_k / |B|
    correction: jax.Array  # [], 1 − νβ
    cluster_mean: jax.Array  # [G, G], averages the groups of group k's cluster: ĝ_n from the ĝ_k
    rate: jax.Array  # [G], ρ_n of the group's cluster
    mean_keep: jax.Array  # [], factor on ḡ: 1 unless the probabilities are estimated
    mean_old: jax.Array  # [G], weight of the old buffers in ḡ, once a cluster
    mean_new: jax.Array  # [G], weight p_n of the new buffers in ḡ, once a cluster


def batch_weights(
    cluster_ids: jax.Array,
    group_sizes: jax.Array | None,
    probs: jax.Array,
    examples_seen: jax.Array | None,
    *,
    correction: Any,
    rate: Callable[[jax.Array, jax.Array], jax.Array],
) -> tuple[BatchWeights, jax.Array | None]:
    """The scalars of one step, and the new count of examples seen (None when p_n is given).

    Args:
      cluster_ids: int [G].
      group_sizes: [G], or None when all groups are of one size.
      probs: [N], p_n.
      examples_seen: [N] to estimate p_n from, or None to take `probs`.
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

    if examples_seen is None:
        p = probs[read_ids]
        p_still_in_mean, mean_keep = p, jnp.ones((), dtype)
    else:
        # With s_n examples seen before and c_n now, p_n = (s_n + c_n)/(S + C) = S/(S+C)·(s_n/S) + c_n/(S+C):
        # all clusters shrink by one factor and only those of the batch gain, so ḡ can follow the new
        # probabilities without a look at the other buffers.
        seen_before = jnp.sum(examples_seen)
        seen_after = seen_before + jnp.where(total > 0, total, 1)
        examples_seen = examples_seen.at[read_ids].add(sizes)
        p = examples_seen[read_ids] / seen_after
        p_still_in_mean = p - cluster_share * total / seen_after
        mean_keep = jnp.where(total > 0, seen_before / seen_after, 1)

    weights = BatchWeights(
        read_ids=read_ids,
        # Out of range and all different: a scatter drops them, and may be told that no index repeats.
        write_ids=jnp.where(first, ids, num_clusters + jnp.arange(num_groups, dtype=jnp.int32)),
        valid=valid,
        active=total > 0,
        share=share,
        correction=jnp.asarray(correction, dtype),
        cluster_mean=jnp.where(same, share[None, :] / jnp.where(cluster_share > 0, cluster_share, 1)[:, None], 0),
        rate=jnp.where(valid, rate(cluster_share, p), 0),
        mean_keep=mean_keep,
        mean_old=jnp.where(first, p_still_in_mean, 0),
        mean_new=jnp.where(first, p, 0),
    )
    return weights, examples_seen


def known_clusters(cluster_ids: jax.Array, num_clusters: int) -> jax.Array:
    """Which ids lie in 0..N−1, before they are cut to 32 bits."""
    return (cluster_ids >= 0) & (cluster_ids < num_clusters)


def has_kernel(mean: jax.Array) -> bool:
    """Whether the update kernel can take a parameter with this mean."""
    return mean.dtype == jnp.float32 and mean.size > 0


def moves_in_kernels(params: Any, state: DiscoverState, num_groups: int) -> bool:
    """Whether the kernels can move these parameters: `Moves`."""
    leaves = jax.tree.leaves((params, state.mean))
    on_one_gpu = accelerator.runs_kernels() and in_slices.get() is None
    few_groups = 0 < num_groups <= update_kernel.MAX_GROUPS
    return on_one_gpu and few_groups and all(has_kernel(jnp.asarray(leaf)) for leaf in leaves)


def rule_for(weights: BatchWeights) -> Callable[[Sequence[Parameter]], Sequence[Result]]:
    """(F1) to (F3) for the parameters at this step: `apply_rule`, on a GPU as kernels.

    The kernels move every number once. Small parameters are joined to one, and those that are not large share kernels;
    slices on several devices have one each.

    The gradients of vectors (biases, scales of norms) are sums over activations, on which XLA would impose the memory
    layout that a kernel needs; a gather on the way keeps it to itself (docs/performance.md).
    """

    def plain(one: Parameter) -> Result:
        return apply_rule(weights, one.grads, one.mean, one.buffers, one.affine)

    if not accelerator.runs_kernels() or not 0 < weights.share.size <= update_kernel.MAX_GROUPS:
        return lambda parameters: [plain(one) for one in parameters]
    scalars = update_kernel.pack(weights)

    def prepared(one: Parameter) -> Parameter:
        if one.mean.ndim > 1:
            return one
        same_order = jnp.where(weights.active, jnp.arange(weights.share.size), 0)  # XLA cannot see that it is
        return one._replace(grads=one.grads.at[same_order].get(mode="promise_in_bounds"))

    def kernels(parameters: Sequence[Parameter]) -> list[Result]:
        return update_kernel.apply_rule(scalars, [prepared(one) for one in parameters])

    def kernels_where_they_can(parameters: Sequence[Parameter]) -> list[Result]:
        able = small_ones_together(kernels)([one for one in parameters if has_kernel(one.mean)])
        rest = iter(able)
        return [next(rest) if has_kernel(one.mean) else plain(one) for one in parameters]

    slices = in_slices.get()
    if slices is None:
        return kernels_where_they_can

    def kernel_on_slices(one: Parameter) -> Result:
        leaf = slices.find(one.path)
        # Not found: an optimizer around this one has made another tree of the parameters.
        if leaf is None or not has_kernel(one.mean):
            return plain(one)
        scale, offset = (None, ()) if one.affine is None else (one.affine.scale, (one.affine.offset,))

        def on_one_device(scalars, scale, grads, mean, buffers, *offset):
            affine = Affine(scale, *offset) if offset else None
            return update_kernel.apply_rule(scalars, [Parameter(None, grads, mean, buffers, affine)])[0]

        sliced = (one.grads, one.mean, one.buffers, *offset)
        return slices.on_each_device(leaf, on_one_device, (scalars, scale), sliced, (0, 0, 1))

    return lambda parameters: [kernel_on_slices(one) for one in parameters]


def apply_rule(
    weights: BatchWeights, grads: jax.Array, mean: jax.Array, buffers: jax.Array, affine: Affine | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(F1) to (F3) for one parameter: only the buffers of the batch's clusters are read and written.

    Args:
      weights: the scalars of this step.
      grads: [G, ...], one gradient per group.
      mean: [...], ḡ.
      buffers: [N, ...], all clusters' buffers.
      affine: what the gradients go through first, `offset` shaped like the parameter.

    Returns:
      The direction d, the new ḡ and the new buffers.
    """
    dtype = mean.dtype

    def per_group(values):
        return values.astype(dtype).reshape(values.shape + (1,) * mean.ndim)

    grads = through(affine, grads.astype(dtype))
    # A group that does not count may hold anything, NaN included: it is cut out, not multiplied by zero.
    grads = jnp.where(weights.valid.reshape(-1, *(1,) * mean.ndim), grads, 0)
    old = buffers.at[weights.read_ids].get(mode="promise_in_bounds").astype(dtype)
    # Groups of the same cluster all compute that cluster's new buffer; one of them writes it.
    cluster_grads = average_by_cluster(weights, grads)
    new = rounded(old + per_group(weights.rate) * (cluster_grads - old), buffers.dtype)

    direction = mean + weights.correction.astype(dtype) * sum_over_groups(per_group(weights.share) * (grads - old))
    # From the buffers as stored, after rounding to their dtype: that is what keeps ḡ = Σ p_n g_n.
    mean = weights.mean_keep.astype(dtype) * mean + sum_over_groups(
        per_group(weights.mean_new) * new - per_group(weights.mean_old) * old
    )
    buffers = buffers.at[weights.write_ids].set(new.astype(buffers.dtype), mode="drop", unique_indices=True)
    return jnp.where(weights.active, direction, 0), mean, buffers


def sum_over_groups(values: jax.Array) -> jax.Array:
    """Σ_k of [G, ...]; as a product, which XLA for CPUs computes several times as fast as a sum over the first axis."""
    if not accelerator.is_cpu():
        return jnp.sum(values, axis=0)
    return jnp.tensordot(jnp.ones(values.shape[0], values.dtype), values, 1, precision=jax.lax.Precision.HIGHEST)


def rounded(numbers: jax.Array, dtype: Any) -> jax.Array:
    """The numbers as `dtype` holds them, in their own. A cast there and back is one that a compiler may leave out."""
    narrow, wide = jnp.finfo(dtype), jnp.finfo(numbers.dtype)
    if narrow.bits >= wide.bits:
        return numbers
    return jax.lax.reduce_precision(numbers, narrow.nexp, narrow.nmant)


def average_by_cluster(weights: BatchWeights, grads: jax.Array) -> jax.Array:
    """[G, ...]: for each group ĝ_n, the mean gradient over all the batch's examples of its cluster."""
    mean = weights.cluster_mean.astype(grads.dtype)
    if grads.ndim > 2:
        return jnp.einsum("kj,j...->k...", mean, grads, precision=jax.lax.Precision.HIGHEST)
    # Vectors are sums over activations, and a matrix product would impose its memory layout on those.
    return jnp.sum(mean.reshape(*mean.shape, *(1,) * (grads.ndim - 1)) * grads[None], axis=1)


def proportional_rate(beta: Any) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """(F4): ρ_n = min(1, (1 − β)·w_n/p_n)."""
    return lambda share, p: jnp.minimum(1, (1 - beta) * share / jnp.maximum(p, jnp.finfo(p.dtype).tiny))


def per_visit_rate(beta: Any) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """(F5): ρ_n = 1 − β."""
    return lambda share, p: jnp.full_like(p, 1 - beta)


RATES = {"proportional": proportional_rate, "per_visit": per_visit_rate}


def through(affine: Affine | None, grads: jax.Array) -> jax.Array:
    """`scale`·`grads` + `offset` for gradients [G, ...]."""
    if affine is None:
        return grads
    return jnp.asarray(affine.scale, grads.dtype) * grads + affine.offset.astype(grads.dtype)[None]


def scale_by_discover(
    clusters: Clusters,
    beta: Any = 0.95,
    nu: Any = 0.95,
    *,
    rate: str = "proportional",
    buffer_dtype: Any = None,
    estimate_probs: bool = False,
) -> GroupTransformation:
    r"""Turns one gradient per group into one direction, with one momentum per cluster.

    The rule is (F1) to (F5) at the top of this file. Under the proportional rate and ν = 1 the direction is
    the updated ḡ: the mean of all the clusters' momenta, including those that the batch did not contain.

    Args:
      clusters: the clusters and their probabilities p_n.
      beta: β in [0, 1], how long a cluster remembers. The paper's α is 1 − β, its α_n is (1 − β)/p_n.
      nu: ν in [0, 1], how much of the step is momentum: 1 is the multi-momentum method, 0 the control
        variate of the paper's Algorithm 1, in between Discover-QHM.
      rate: "proportional" moves a buffer by its cluster's share of the batch relative to p_n, (F4);
        "per_visit" by 1 − β at each visit, (F5), for very rare clusters.
      buffer_dtype: dtype of the stored buffers, for instance `jnp.bfloat16` to halve the state. Arithmetic
        and ḡ stay in float32 or wider.
      estimate_probs: learn p_n from the group sizes seen so far instead of taking `clusters.probs`.

    Returns:
      An `optax.GradientTransformationExtraArgs`. Its update takes gradients with leaves [G, ...],
      `cluster_ids` (int [G]) and, where groups differ or are padded, `group_sizes` ([G], 0 for padding). Its
      output is shaped like the parameters. A group whose id is outside 0..N−1 or whose size is 0 changes
      nothing; a batch without examples yields a zero direction and leaves the state as it was.

    Raises:
      ValueError: if β or ν is outside [0, 1], the rate is unknown, or gradients, ids and sizes do not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> tx = scale_by_discover(Clusters.uniform(3), beta=0.9, nu=1.0)
      >>> state = tx.init(jnp.zeros(2))
      >>> grads = jnp.array([[1.0, 0.0], [0.0, 1.0]])       # two groups
      >>> direction, state = tx.update(grads, state, cluster_ids=jnp.array([0, 2]))
      >>> direction.shape
      (2,)

    Departs from the paper: Algorithm 1 as printed moves ḡ by α·Δ, which drifts away from Σ p_n g_n as soon as a
    batch has several groups. `paper_discover` keeps the printed lines.
    """
    if not isinstance(clusters, Clusters):
        raise TypeError(f"clusters must be a discover.Clusters, got {type(clusters).__name__}; try Clusters.uniform(n)")
    check_unit_interval("beta", beta)
    check_unit_interval("nu", nu)
    check_choice("rate", rate, tuple(RATES))
    num_clusters = clusters.num_clusters

    def init(params):
        def zero_mean(p):
            return jnp.zeros(jnp.shape(p), jnp.promote_types(jnp.result_type(p), jnp.float32))

        def zero_buffers(p):
            dtype = buffer_dtype or jnp.promote_types(jnp.result_type(p), jnp.float32)
            return jnp.zeros((num_clusters, *jnp.shape(p)), dtype)

        seen = jnp.zeros(num_clusters, jnp.result_type(float)) if estimate_probs else None
        return DiscoverState(jax.tree.map(zero_mean, params), jax.tree.map(zero_buffers, params), seen)

    def update(updates, state, params=None, *, cluster_ids=None, group_sizes=None, affine=None, moves=None, **_):
        refuse_optax_wrappers("discover")
        num_groups = check_group_axis(updates, state.mean)
        ids = check_cluster_ids(cluster_ids, num_groups)
        sizes = None if group_sizes is None else check_group_sizes(group_sizes, num_groups)
        if num_groups == 1 and num_clusters > FEW_CLUSTERS and accelerator.is_cpu():
            # XLA for CPU turns a scatter of one row into an update that copies all N buffers twice; a second group
            # that does not count prevents it, and is the cheaper of the two unless N is small.
            updates = jax.tree.map(lambda g: jnp.concatenate([g, g]), updates)
            ids = jnp.concatenate([ids, jnp.full_like(ids, -1)])
            sizes = None if sizes is None else jnp.concatenate([sizes, jnp.zeros_like(sizes)])
        probs = jnp.asarray(clusters.probs, jnp.result_type(float))
        weights, seen = batch_weights(
            ids, sizes, probs, state.examples_seen, correction=1 - nu * beta, rate=RATES[rate](beta)
        )

        moves = None if moves is None else moves.of_each(params)
        direction, mean, buffers = map_parameters(rule_for(weights), updates, state, affine, moves)
        return direction, DiscoverState(mean, buffers, seen)

    return GroupTransformation(init, update)
