"""(F1) to (F3) of `family.py` for one parameter as one GPU kernel.

The plain version reads the touched buffers, writes the new ones to a temporary and copies them to their place. Here
each number is read once and written once: G gradients, G buffers in, G buffers out in place, ḡ in and out, d out;
or, in place of d, the parameter in and out.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

MAX_GROUPS = 16  # all groups' numbers are held in registers at once
BLOCK = 512
WARPS = 4


def _kernel(
    ids_ref,
    scalars_ref,
    grads_ref,
    mean_ref,
    buffers_ref,
    numbers_ref,
    vector_ref,
    result_ref,
    new_mean_ref,
    new_buffers_ref,
    *,
    size,
    block,
    affine,
    move,
    penalised,
    decays,
):
    num_groups, num_clusters = grads_ref.shape[0], buffers_ref.shape[0]
    at = pl.program_id(0) * block + jnp.arange(block)
    inside = at < size

    # This kernel does not read again what it writes, so it need not stay in the cache.
    store = functools.partial(plgpu.store, eviction_policy="evict_first")

    def scalar(vector, k):
        return scalars_ref[2 + vector * num_groups + k]

    valid, share, rate, mean_old, mean_new = (functools.partial(scalar, vector) for vector in range(5))
    active, mean_keep = scalars_ref[0], scalars_ref[1]
    mean = plgpu.load(mean_ref.at[at], mask=inside, other=0.0)
    dtype = mean.dtype
    vector: Any = plgpu.load(vector_ref.at[at], mask=inside, other=0.0) if affine or move else None
    grads, old = [], []
    for k in range(num_groups):
        gradient = plgpu.load(grads_ref.at[jnp.full_like(at, k), at], mask=inside, other=0.0).astype(dtype)
        if affine:
            gradient = numbers_ref[0] * gradient + vector
        elif penalised:
            gradient = gradient + numbers_ref[0] * vector
        grads.append(jnp.where(valid(k) > 0, gradient, 0))
        old.append(plgpu.load(buffers_ref.at[ids_ref[k], at], mask=inside, other=0.0).astype(dtype))

    direction, new_mean = mean, mean_keep * mean
    for k in range(num_groups):
        direction = direction + share(k) * (grads[k] - old[k])
        cluster_gradient = jnp.zeros_like(mean)
        for j in range(num_groups):
            cluster_gradient = cluster_gradient + scalar(5 + k, j) * grads[j]
        new = (old[k] + rate(k) * (cluster_gradient - old[k])).astype(buffers_ref.dtype)
        new_mean = new_mean + (mean_new(k) * new.astype(dtype) - mean_old(k) * old[k])
        target = ids_ref[num_groups + k]
        writes = target < num_clusters
        store(new_buffers_ref.at[jnp.where(writes, target, 0), at], new, mask=inside & writes)
    result, unmoved = direction, jnp.zeros_like(mean)
    if move:
        # Not θ(1 − λμ) − μd: in float32 1 − λμ is 1 for a small λμ.
        result = vector - numbers_ref[2] * (direction + numbers_ref[1] * vector if decays else direction)
        unmoved = vector
    store(result_ref.at[at], jnp.where(active > 0, result, unmoved), mask=inside)
    store(new_mean_ref.at[at], new_mean, mask=inside)


class Scalars(NamedTuple):
    """The scalars of one step, laid out for the kernel: made once, shared by all parameters."""

    ids: jax.Array  # int32 [2G], the buffers to read, then those to write (N or more: none)
    values: jax.Array  # float32 [2 + 5G + G²]


def pack(weights: Any) -> Scalars:
    """Lays out the `BatchWeights` of a step for the kernel."""
    values = (
        weights.active[None],
        weights.mean_keep[None],
        weights.valid,
        weights.correction * weights.share,
        weights.rate,
        weights.mean_old,
        weights.mean_new,
        weights.cluster_mean.reshape(-1),
    )
    ids = jnp.concatenate([weights.read_ids, weights.write_ids])
    return Scalars(ids, jnp.concatenate([v.astype(jnp.float32) for v in values]))


def apply_rule(
    scalars: Scalars,
    grads: jax.Array,
    mean: jax.Array,
    buffers: jax.Array,
    affine: Any = None,
    move: Any = None,
    *,
    block: int = BLOCK,
    warps: int = WARPS,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The same function as `family.apply_rule`, for at most `MAX_GROUPS` groups and a float32 mean.

    With a `leaves.Move` in place of `affine` the first result is the moved parameter.
    """
    num_groups, num_clusters, size = grads.shape[0], buffers.shape[0], mean.size
    if affine is not None:
        numbers, vector = jnp.asarray(affine.scale, mean.dtype).reshape(1), affine.offset.astype(mean.dtype)
    elif move is not None:
        numbers, vector = move.numbers, move.param
    else:
        numbers, vector = jnp.zeros(1, mean.dtype), jnp.zeros(1, mean.dtype)  # not looked at
    flat = jax.ShapeDtypeStruct((size,), mean.dtype)
    kernel = functools.partial(
        _kernel,
        size=size,
        block=block,
        affine=affine is not None,
        move=move is not None,
        penalised=move is not None and move.penalised,
        decays=move is not None and move.decays,
    )
    result, new_mean, new_buffers = pl.pallas_call(
        kernel,
        out_shape=(flat, flat, jax.ShapeDtypeStruct((num_clusters, size), buffers.dtype)),
        grid=(pl.cdiv(size, block),),
        input_output_aliases={3: 1, 4: 2} | ({} if move is None else {6: 0}),
        compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=1),
        interpret=interpret,
        name="discover_update",
    )(
        scalars.ids,
        scalars.values,
        grads.reshape(num_groups, size),
        mean.reshape(size),
        buffers.reshape(num_clusters, size),
        numbers,
        vector.reshape(-1),
    )
    return result.reshape(mean.shape), new_mean.reshape(mean.shape), new_buffers.reshape(buffers.shape)
