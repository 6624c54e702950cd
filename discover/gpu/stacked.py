"""The rule on arrays [G, ...]: the plain version, which every device can run."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from discover.gpu.parameters import Parameter, Result
from discover.rule import Weights, apply_rule, displacement


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
        return jnp.tensordot(jnp.ones(values.shape[0], values.dtype), values, 1, precision=jax.lax.Precision.HIGHEST)

    def by_cluster(self, cluster_mean: jax.Array, grads: jax.Array) -> jax.Array:
        mean = cluster_mean.astype(grads.dtype)
        if grads.ndim > 2:
            return jnp.einsum("kj,j...->k...", mean, grads, precision=jax.lax.Precision.HIGHEST)
        # Vectors are sums over activations, and a matrix product would impose its memory layout on those.
        return jnp.sum(mean.reshape(*mean.shape, *(1,) * (grads.ndim - 1)) * grads[None], axis=1)

    def stored(self, values: jax.Array) -> jax.Array:
        # A cast there and back is one that a compiler may leave out.
        narrow, wide = jnp.finfo(self.buffer_dtype), jnp.finfo(values.dtype)
        if narrow.bits >= wide.bits:
            return values
        return jax.lax.reduce_precision(values, narrow.nexp, narrow.nmant)


def update_stacked(weights: Weights, one: Parameter, *, sums_as_products: bool) -> Result:
    """The rule for one parameter: only the buffers of the batch's clusters are read and written."""
    dtype, ndim = one.mean.dtype, one.mean.ndim

    def for_parameter(value: jax.Array) -> jax.Array:
        """[G] as [G, 1, ...], in the parameter's precision."""
        value = value if value.dtype == bool else value.astype(dtype)
        return value.reshape(value.shape + (1,) * ndim) if value.ndim else value

    fields = ("valid", "active", "share", "correction", "rate", "mean_keep", "mean_old", "mean_new")
    shaped = weights._replace(**{field: for_parameter(getattr(weights, field)) for field in fields})
    old = one.buffers.at[weights.read_ids].get(mode="promise_in_bounds").astype(dtype)
    offset = one.offset and one.offset._replace(vector=one.offset.vector[None])
    groups = Stacked(one.buffers.dtype, sums_as_products)
    first, mean, new = apply_rule(shaped, one.grads.astype(dtype), one.mean, old, offset, groups)
    new = new.astype(one.buffers.dtype)
    buffers = one.buffers.at[weights.write_ids].set(new, mode="drop", unique_indices=True)
    if one.move is not None:
        param, learning_rate, decay = one.move
        step = jnp.where(weights.active, displacement(first, param, learning_rate, decay), 0)
        first = (param + step).astype(param.dtype)
    return first, mean, buffers
