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


class Stacked(NamedTuple):
    """Arithmetic over the first axis: an `OverGroups`.

    XLA for CPUs computes a product several times as fast as a sum over the first axis: hence `sums_as_products`. And it
    takes fewer passes where each group adds its part to the buffer: hence `adds`, if buffers are as precise as ḡ.
    """

    buffer_dtype: Any
    sums_as_products: bool
    draw: Draw | None = None  # for buffers in int8
    adds: bool = False

    def each(self, function: Callable[..., jax.Array], *values: jax.Array) -> jax.Array:
        return function(*values)

    def sum(self, values: jax.Array) -> jax.Array:
        if not self.sums_as_products:
            return jnp.sum(values, axis=0)
        if values.shape[0] == 1:
            return values[0]
        return jnp.tensordot(jnp.ones(values.shape[0], values.dtype), values, 1, precision=jax.lax.Precision.HIGHEST)

    def weighted_sum(self, weights: jax.Array, values: jax.Array) -> jax.Array:
        if not self.sums_as_products or values.shape[0] == 1:
            return jnp.sum(weights * values, axis=0)
        return jnp.tensordot(weights.reshape(-1), values, 1, precision=jax.lax.Precision.HIGHEST)

    def by_cluster(self, cluster_mean: jax.Array, grads: jax.Array) -> jax.Array:
        if self.sums_as_products and grads.shape[0] == 1:
            return grads
        mean = cluster_mean.astype(grads.dtype)
        if self.sums_as_products or grads.ndim > 2:
            return jnp.einsum("kj,j...->k...", mean, grads, precision=jax.lax.Precision.HIGHEST)
        # Vectors are sums over activations, and a matrix product would impose its memory layout on those.
        return jnp.sum(mean.reshape(*mean.shape, *(1,) * (grads.ndim - 1)) * grads[None], axis=1)

    def everywhere(self, value: jax.Array) -> jax.Array:
        return value[None]

    def stored(self, values: jax.Array, weights: jax.Array) -> tuple[Any, jax.Array]:
        if self.draw is not None:
            held, read = quantized.held_in_turn(list(values), list(weights), self._hold)
            return jax.tree.map(lambda *rows: jnp.concatenate(rows), *held), jnp.stack(read)
        # A cast there and back is one that a compiler may leave out.
        narrow, wide = jnp.finfo(self.buffer_dtype), jnp.finfo(values.dtype)
        if narrow.bits < wide.bits:
            values = jax.lax.reduce_precision(values, narrow.nexp, narrow.nmant)
        return values.astype(self.buffer_dtype), values

    def _hold(self, group: int, value: jax.Array) -> tuple[Any, jax.Array]:
        """In int8: a row, and what it stands for."""
        assert self.draw is not None
        row = quantized.quantize(value[None], self.draw._replace(rows=self.draw.rows[group : group + 1]))
        return row, quantized.values_of(row, value)[0]


def update_stacked(weights: Weights, one: Parameter, *, on_cpu: bool) -> Result:
    """The rule for one parameter: only the buffers of the batch's clusters are read and written."""
    dtype, ndim = one.mean.dtype, one.mean.ndim

    def for_parameter(value: Any) -> Any:
        """[G] as [G, 1, ...], in the parameter's precision."""
        if value is None:
            return None
        value = value if value.dtype == bool else value.astype(dtype)
        return value.reshape(value.shape + (1,) * ndim) if value.ndim else value

    fields = ("valid", "active", "share", "correction", "rate", "mean_keep", "mean_old", "mean_new")
    fields += ("gain", "mean_gain", "mean_rise")
    shaped = weights._replace(**{field: for_parameter(getattr(weights, field)) for field in fields})
    rows = jax.tree.map(lambda b: _rows(b, weights.read_ids, on_cpu), one.buffers)
    old = quantized.values_of(rows, one.mean)
    offset = one.offset and one.offset._replace(vector=one.offset.vector[None])
    draw = Draw(weights.step, weights.clusters) if quantized.is_quantized(one.buffers) else None
    kind = kind_of(one).buffer_dtype
    spread = any(jax.typeof(one.grads).sharding.spec)  # over devices, explicitly: rows to add must be whole
    groups = Stacked(kind, on_cpu, draw, adds=on_cpu and kind == dtype and not spread)
    first, mean, new = apply_rule(shaped, one.grads.astype(dtype), one.mean, old, offset, groups)
    if groups.adds:
        buffers = _with_rows(one.buffers, weights.read_ids, new, on_cpu, add=True)
    else:
        buffers = jax.tree.map(lambda b, n: _with_rows(b, weights.write_ids, n, on_cpu), one.buffers, new)
    if one.move is not None:
        param, learning_rate, decay = one.move
        step = jnp.where(weights.active, displacement(first, param, learning_rate, decay), 0)
        first = (param + step).astype(param.dtype)
    return first, mean, buffers


def _rows(buffers: jax.Array, ids: jax.Array, on_cpu: bool) -> jax.Array:
    """[G, ...] of [N, ...]."""
    if _as_halves(buffers, ids, on_cpu):
        return _halves(buffers).at[_ids_of_halves(ids)].get(mode="promise_in_bounds").reshape(1, -1)
    if _alone(ids, on_cpu):
        ids = jnp.concatenate([ids, ids])
        return buffers.at[ids].get(mode="promise_in_bounds")[:1]
    return buffers.at[ids].get(mode="promise_in_bounds")


def _with_rows(buffers: jax.Array, ids: jax.Array, new: jax.Array, on_cpu: bool, *, add: bool = False) -> jax.Array:
    """The buffers with these rows; or, with `add`, with these added, where ids may repeat."""
    shape = buffers.shape
    if _as_halves(buffers, ids, on_cpu):
        buffers, ids, new = _halves(buffers), _ids_of_halves(ids), _halves(new)
    elif _alone(ids, on_cpu):  # the second adds nothing, or is dropped
        ids = jnp.concatenate([ids, ids if add else jnp.full_like(ids, 2**30)])
        new = jnp.concatenate([new, jnp.zeros_like(new)])
    if add:
        return buffers.at[ids].add(new, mode="promise_in_bounds").reshape(shape)
    return buffers.at[ids].set(new, mode="drop", unique_indices=True).reshape(shape)


def _as_halves(buffers: jax.Array, ids: jax.Array, on_cpu: bool) -> bool:
    """Whether the one row of one group is read and written as two of half its length."""
    return _alone(ids, on_cpu) and buffers.ndim == 2 and buffers.shape[1] > 0 and buffers.shape[1] % 2 == 0


def _alone(ids: jax.Array, on_cpu: bool) -> bool:
    """Whether one row would be read and written alone on a CPU.

    XLA for CPUs makes of one row's gather and scatter an update that copies all N buffers twice; not so of two rows'.
    Two halves of it cost nothing, and where there are none a second row that changes nothing costs little.
    """
    return on_cpu and ids.size == 1


def _halves(rows: jax.Array) -> jax.Array:
    return rows.reshape(2 * rows.shape[0], -1)


def _ids_of_halves(ids: jax.Array) -> jax.Array:
    return 2 * ids + jnp.arange(2, dtype=ids.dtype)


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
