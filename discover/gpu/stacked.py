"""The rule on arrays [G, ...]: the plain version, which every device can run."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from discover.gpu.parameters import Parameter, Result
from discover.rule import AFRESH, Weights, apply_rule, displacement

FEW_CLUSTERS = 6


class Stacked(NamedTuple):
    """Arithmetic over the first axis: an `OverGroups`.

    XLA for CPUs computes a product several times as fast as a sum over the first axis: hence `sums_as_products`.
    """

    buffer_dtype: Any
    sums_as_products: bool

    def each(self, function: Callable[..., jax.Array], *values: jax.Array) -> jax.Array:
        return function(*values)

    def sum(self, values: jax.Array) -> jax.Array:
        if not self.sums_as_products:
            return jnp.sum(values, axis=0)
        if values.shape[0] == 1:
            return values[0]
        return jnp.tensordot(jnp.ones(values.shape[0], values.dtype), values, 1, precision=jax.lax.Precision.HIGHEST)

    def by_cluster(self, cluster_mean: jax.Array, grads: jax.Array) -> jax.Array:
        if self.sums_as_products and grads.shape[0] == 1:
            return grads
        mean = cluster_mean.astype(grads.dtype)
        if grads.ndim > 2:
            return jnp.einsum("kj,j...->k...", mean, grads, precision=jax.lax.Precision.HIGHEST)
        # Vectors are sums over activations, and a matrix product would impose its memory layout on those.
        return jnp.sum(mean.reshape(*mean.shape, *(1,) * (grads.ndim - 1)) * grads[None], axis=1)

    def everywhere(self, value: jax.Array) -> jax.Array:
        return value[None]

    def stored(self, values: jax.Array) -> jax.Array:
        # A cast there and back is one that a compiler may leave out.
        narrow, wide = jnp.finfo(self.buffer_dtype), jnp.finfo(values.dtype)
        if narrow.bits >= wide.bits:
            return values
        return jax.lax.reduce_precision(values, narrow.nexp, narrow.nmant)


def update_stacked(weights: Weights, one: Parameter, *, on_cpu: bool) -> Result:
    """The rule for one parameter: only the buffers of the batch's clusters are read and written."""
    dtype, ndim = one.mean.dtype, one.mean.ndim

    def for_parameter(value: jax.Array) -> jax.Array:
        """[G] as [G, 1, ...], in the parameter's precision."""
        value = value if value.dtype == bool else value.astype(dtype)
        return value.reshape(value.shape + (1,) * ndim) if value.ndim else value

    fields = ("valid", "active", "share", "correction", "rate", "mean_keep", "mean_old", "mean_new")
    shaped = weights._replace(**{field: for_parameter(getattr(weights, field)) for field in fields})
    read_ids, write_ids = weights.read_ids, weights.write_ids
    alone = on_cpu and write_ids.size == 1 and one.buffers.shape[0] > FEW_CLUSTERS
    if alone:
        # XLA for CPUs makes of one row's gather and scatter an update that copies all N buffers twice. A second row,
        # which is dropped, prevents it, and is the cheaper of the two unless N is small.
        read_ids, write_ids = jnp.pad(read_ids, (0, 1)), jnp.pad(write_ids, (0, 1), constant_values=2**30)
    old = one.buffers.at[read_ids].get(mode="promise_in_bounds")[: weights.share.size].astype(dtype)
    offset = one.offset and one.offset._replace(vector=one.offset.vector[None])
    groups = Stacked(one.buffers.dtype, sums_as_products=on_cpu)
    first, mean, new = apply_rule(shaped, one.grads.astype(dtype), one.mean, old, offset, groups)
    new = new.astype(one.buffers.dtype)
    new = jnp.concatenate([new, new]) if alone else new
    buffers = one.buffers.at[write_ids].set(new, mode="drop", unique_indices=True)
    if one.move is not None:
        param, learning_rate, decay = one.move
        step = jnp.where(weights.active, displacement(first, param, learning_rate, decay), 0)
        first = (param + step).astype(param.dtype)
    return first, mean, buffers


def summed_afresh(weights: Weights, results: Sequence[Result]) -> list[Result]:
    """The results with ḡ = Σ_n p_n g_n, where its turn has come; here all of it at once."""
    if not results:
        return []
    due = weights.turn == AFRESH - 1

    def fresh() -> list[jax.Array]:
        return [jnp.where(due, _weighted_sum(weights.probs, buffers, mean.dtype), mean) for _, mean, buffers in results]

    means = jax.lax.cond(_anywhere(due), fresh, lambda: [mean for _, mean, _ in results])
    return [(first, mean, buffers) for (first, _, buffers), mean in zip(results, means, strict=True)]


def _weighted_sum(probs: jax.Array, buffers: jax.Array, dtype: Any) -> jax.Array:
    return jnp.tensordot(probs.astype(dtype), buffers.astype(dtype), 1, precision=jax.lax.Precision.HIGHEST)


@jax.custom_batching.custom_vmap
def _anywhere(due: jax.Array) -> jax.Array:
    """Under `vmap`: whether it is due in any of the runs. With one answer for each, a `cond` computes both sides."""
    return due


@_anywhere.def_vmap
def _(size: int, batched: Sequence[bool], due: jax.Array) -> tuple[jax.Array, bool]:
    del size, batched
    return jnp.any(due), False
