"""The rule on arrays [G, ...]: the plain version, which every device can run."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from discover import quantized
from discover.context import displacement
from discover.gpu.parameters import Parameter, Result, kind_of
from discover.quantized import Draw
from discover.rule import AFRESH, Weights, apply_rule

FEW_CLUSTERS = 6


class Stacked(NamedTuple):
    """Arithmetic over the first axis: an `OverGroups`.

    XLA for CPUs computes a product several times as fast as a sum over the first axis: hence `sums_as_products`.
    """

    buffer_dtype: Any
    sums_as_products: bool
    draw: Draw | None = None  # for buffers in int8

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

    def stored(self, values: jax.Array) -> tuple[Any, jax.Array]:
        if self.draw is not None:
            codes = quantized.quantize(values, self.draw)
            return codes, quantized.values_of(codes, jax.ShapeDtypeStruct(values.shape[1:], values.dtype))
        # A cast there and back is one that a compiler may leave out.
        narrow, wide = jnp.finfo(self.buffer_dtype), jnp.finfo(values.dtype)
        if narrow.bits < wide.bits:
            values = jax.lax.reduce_precision(values, narrow.nexp, narrow.nmant)
        return values.astype(self.buffer_dtype), values


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
    alone = on_cpu and write_ids.size == 1 and weights.probs.size > FEW_CLUSTERS
    if alone:
        # XLA for CPUs makes of one row's gather and scatter an update that copies all N buffers twice. A second row,
        # which is dropped, prevents it, and is the cheaper of the two unless N is small.
        read_ids, write_ids = jnp.pad(read_ids, (0, 1)), jnp.pad(write_ids, (0, 1), constant_values=2**30)
    rows = jax.tree.map(lambda b: b.at[read_ids].get(mode="promise_in_bounds")[: weights.share.size], one.buffers)
    old = quantized.values_of(rows, one.mean)
    offset = one.offset and one.offset._replace(vector=one.offset.vector[None])
    draw = Draw(weights.step, weights.clusters) if quantized.is_quantized(one.buffers) else None
    groups = Stacked(kind_of(one).buffer_dtype, on_cpu, draw)
    first, mean, new, _ = apply_rule(shaped, one.grads.astype(dtype), one.mean, old, offset, groups)
    buffers = jax.tree.map(
        lambda b, n: b.at[write_ids].set(jnp.concatenate([n, n]) if alone else n, mode="drop", unique_indices=True),
        one.buffers,
        new,
    )
    if one.move is not None:
        param, learning_rate, decay = one.move
        step = jnp.where(weights.active, displacement(first, param, learning_rate, decay), 0)
        first = (param + step).astype(param.dtype)
    return first, mean, buffers


def summed_afresh(weights: Weights, results: Sequence[Result]) -> list[Result]:
    """The results with ḡ = Σ_n p_n g_n, where its turn has come; here all of it at once."""
    if not results or weights.turn is None:
        return list(results)
    due = weights.turn == AFRESH - 1

    def fresh() -> list[jax.Array]:
        return [jnp.where(due, _weighted_sum(weights.probs, buffers, mean), mean) for _, mean, buffers in results]

    means = jax.lax.cond(_anywhere(due), fresh, lambda: [mean for _, mean, _ in results])
    return [(first, mean, buffers) for (first, _, buffers), mean in zip(results, means, strict=True)]


def _weighted_sum(probs: jax.Array, buffers: Any, like: jax.Array) -> jax.Array:
    probs = probs.astype(like.dtype)
    if not quantized.is_quantized(buffers):
        return jnp.tensordot(probs, buffers.astype(like.dtype), 1, precision=jax.lax.Precision.HIGHEST)

    def add(n: Any, total: jax.Array) -> jax.Array:  # one by one: all of them in float32 would take four times as much
        row = jax.tree.map(lambda b: jax.lax.dynamic_slice_in_dim(b, n, 1), buffers)
        return total + probs[n] * quantized.values_of(row, like)[0]

    return jax.lax.fori_loop(0, probs.size, add, jnp.zeros_like(like))


@jax.custom_batching.custom_vmap
def _anywhere(due: jax.Array) -> jax.Array:
    """Under `vmap`: whether it is due in any of the runs. With one answer for each, a `cond` computes both sides."""
    return due


@_anywhere.def_vmap
def _(size: int, batched: Sequence[bool], due: jax.Array) -> tuple[jax.Array, bool]:
    del size, batched
    return jnp.any(due), False
