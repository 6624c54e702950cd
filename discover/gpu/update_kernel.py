"""(F1) to (F3) of `family.py` as GPU kernels.

The plain version reads the touched buffers, writes the new ones to a temporary and copies them to their place. Here
each number is read once and written once: G gradients, G buffers in, G buffers out in place, ḡ in and out, d out;
or, in place of d, the parameter in and out.

A kernel that is done in some microseconds has the GPU half empty at its start and its end. So parameters that are not
large share one: its first blocks update the first of them, the next blocks the second, and so on.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from discover.gpu.joining import Parameter, Result

MAX_GROUPS = 16  # all groups' numbers are held in registers at once
BLOCK = 512
WARPS = 4
LARGE = 2**22  # numbers of a parameter that has a kernel to itself
MOST_TOGETHER = 8  # parameters in a kernel: its code grows with them, slowly at first


class _Kind(NamedTuple):
    """What the parameters of a kernel have in common."""

    affine: bool
    move: bool
    penalised: bool
    decays: bool
    gradient_dtype: Any
    buffer_dtype: Any
    aligned: bool  # every row begins where four numbers can be loaded at once


class _Refs(NamedTuple):
    """Where a parameter's numbers are, and where the results go."""

    grads: Any  # [G, size]
    mean: Any  # [size]
    buffers: Any  # [N, size]
    vector: Any  # [size]: of an `Affine` or a `Move`, else not looked at
    result: Any
    new_mean: Any
    new_buffers: Any


def _kernel(ids_ref, scalars_ref, numbers_ref, *refs, count, kind, block):
    """One block of one of the parameters. Loads and stores are written out for each of them, the arithmetic once."""
    inputs, results = refs[: 4 * count], refs[4 * count :]
    parameters = [_Refs(*inputs[4 * k : 4 * k + 4], *results[3 * k : 3 * k + 3]) for k in range(count)]
    num_groups = parameters[0].grads.shape[0]
    which, number, first = jnp.int32(0), pl.program_id(0), 0
    for k in range(1, count):
        first += pl.cdiv(parameters[k - 1].mean.shape[0], block)
        reached = pl.program_id(0) >= first
        which = jnp.where(reached, k, which)
        number = jnp.where(reached, pl.program_id(0) - first, number)
    at = number * block + jnp.arange(block)

    def scalar(vector, k):
        return scalars_ref[2 + vector * num_groups + k]

    def load_from(refs):
        load = functools.partial(plgpu.load, mask=at < refs.mean.shape[0], other=0.0)
        mean = load(refs.mean.at[at])
        grads = [load(refs.grads.at[jnp.full_like(at, k), at]).astype(mean.dtype) for k in range(num_groups)]
        old = [load(refs.buffers.at[ids_ref[k], at]).astype(mean.dtype) for k in range(num_groups)]
        return mean, load(refs.vector.at[at]) if kind.affine or kind.move else mean, grads, old

    loads = [functools.partial(load_from, refs) for refs in parameters]
    mean, vector, grads, old = loads[0]() if count == 1 else lax.switch(which, loads)
    if kind.affine:
        grads = [numbers_ref[0] * gradient + vector for gradient in grads]
    elif kind.penalised:
        grads = [gradient + numbers_ref[0] * vector for gradient in grads]

    valid, share, rate, mean_old, mean_new = (functools.partial(scalar, vector) for vector in range(5))
    active, mean_keep = scalars_ref[0], scalars_ref[1]
    grads = [jnp.where(valid(k) > 0, gradient, 0) for k, gradient in enumerate(grads)]
    direction, new_mean, new = mean, mean_keep * mean, []
    for k in range(num_groups):
        direction = direction + share(k) * (grads[k] - old[k])
        cluster_gradient = jnp.zeros_like(mean)
        for j in range(num_groups):
            cluster_gradient = cluster_gradient + scalar(5 + k, j) * grads[j]
        new.append((old[k] + rate(k) * (cluster_gradient - old[k])).astype(kind.buffer_dtype))
        new_mean = new_mean + (mean_new(k) * new[k].astype(mean.dtype) - mean_old(k) * old[k])
    result, unmoved = direction, jnp.zeros_like(mean)
    if kind.move:
        # Not θ(1 − λμ) − μd: in float32 1 − λμ is 1 for a small λμ.
        result = vector - numbers_ref[2] * (direction + numbers_ref[1] * vector if kind.decays else direction)
        unmoved = vector
    result = jnp.where(active > 0, result, unmoved)

    def store_to(refs):
        # This kernel does not read again what it writes, so it need not stay in the cache.
        store = functools.partial(plgpu.store, eviction_policy="evict_first")
        inside = at < refs.mean.shape[0]
        for k in range(num_groups):
            target = ids_ref[num_groups + k]
            writes = target < refs.buffers.shape[0]
            store(refs.new_buffers.at[jnp.where(writes, target, 0), at], new[k], mask=inside & writes)
        store(refs.result.at[at], result, mask=inside)
        store(refs.new_mean.at[at], new_mean, mask=inside)

    for k, refs in enumerate(parameters):
        stores = functools.partial(store_to, refs)
        stores() if count == 1 else pl.when(which == k)(stores)


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
    parameters: Sequence[Parameter],
    *,
    block: int = BLOCK,
    warps: int = WARPS,
    interpret: bool = False,
) -> list[Result]:
    """`family.apply_rule` for each of the parameters, of at most `MAX_GROUPS` groups and with a float32 mean.

    The first result of a parameter with a `leaves.Move` is the moved parameter.
    """
    alike: dict[Any, list[int]] = {}
    for number, one in sorted(enumerate(parameters), key=lambda pair: pair[1].mean.size):
        alone = number if one.mean.size > LARGE else None
        alike.setdefault((_kind(one), alone), []).append(number)
    results: dict[int, Result] = {}
    for numbers in alike.values():
        for few in (numbers[at : at + MOST_TOGETHER] for at in range(0, len(numbers), MOST_TOGETHER)):
            some = [parameters[number] for number in few]
            results |= zip(few, _launch(scalars, some, block=block, warps=warps, interpret=interpret))
    return [results[number] for number in range(len(parameters))]


def _kind(one: Parameter) -> _Kind:
    moves = (False, False, False) if one.move is None else (True, one.move.penalised, one.move.decays)
    return _Kind(one.affine is not None, *moves, one.grads.dtype, one.buffers.dtype, one.mean.size % 4 == 0)


def _launch(
    scalars: Scalars, parameters: Sequence[Parameter], *, block: int, warps: int, interpret: bool
) -> list[Result]:
    """One kernel for all of these."""
    arguments: list[Any] = [scalars.ids, scalars.values, _numbers(parameters[0])]
    shapes, aliases = [], {}
    for k, (_, grads, mean, buffers, affine, move) in enumerate(parameters):
        size = mean.size
        vector = jnp.zeros(1, mean.dtype) if affine is None else affine.offset.astype(mean.dtype)
        vector = vector if move is None else move.param
        aliases |= {3 + 4 * k + 1: 3 * k + 1, 3 + 4 * k + 2: 3 * k + 2}
        aliases |= {} if move is None else {3 + 4 * k + 3: 3 * k}
        arguments += [grads.reshape(-1, size), mean.reshape(size), buffers.reshape(-1, size), vector.reshape(-1)]
        flat = jax.ShapeDtypeStruct((size,), mean.dtype)
        shapes += [flat, flat, jax.ShapeDtypeStruct((buffers.shape[0], size), buffers.dtype)]
    results = pl.pallas_call(
        functools.partial(_kernel, count=len(parameters), kind=_kind(parameters[0]), block=block),
        out_shape=shapes,
        grid=(sum(pl.cdiv(one.mean.size, block) for one in parameters),),
        input_output_aliases=aliases,
        compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=1),
        interpret=interpret,
        name="discover_update",
    )(*arguments)
    return [
        (first.reshape(one.mean.shape), mean.reshape(one.mean.shape), buffers.reshape(one.buffers.shape))
        for one, first, mean, buffers in zip(parameters, results[::3], results[1::3], results[2::3])
    ]


def _numbers(parameter: Parameter) -> jax.Array:
    """The numbers that an `Affine` or a `Move` brings, the same for all parameters of an update."""
    if parameter.affine is not None:
        return jnp.asarray(parameter.affine.scale, parameter.mean.dtype).reshape(1)
    return jnp.zeros(1, parameter.mean.dtype) if parameter.move is None else parameter.move.numbers
