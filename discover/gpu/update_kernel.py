"""The rule as GPU kernels.

The plain version reads the touched buffers, writes the new ones to a temporary and copies them to their place. Here
each number is read once and written once: G gradients, G buffers in, G buffers out in place, ḡ in and out, d out;
or, in place of d, the parameter in and out.

A kernel that is done in some microseconds has the GPU half empty at its start and its end. So parameters that are not
large share one: its first blocks update the first of them, the next blocks the second, and so on.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from discover.context import Offset, displacement
from discover.gpu import mean_kernel
from discover.gpu.parameters import Parameter, Result, kind_of
from discover.gpu.rows import EVICT, buffers_from, parts_of, rows_of, stretch
from discover.quantized import held_in_turn, is_quantized
from discover.rule import Weights, apply_rule

MAX_GROUPS = 16  # all groups' numbers are held in registers at once
BLOCK = 512
WARPS = 4
LARGE = 2**22  # numbers of a parameter that has a kernel to itself
MOST_TOGETHER = 16  # parameters in a kernel
MOST_ROWS = 64  # of all of them: the time to compile a kernel grows with these
MOST_QUANTIZED_ROWS = 16  # of 8-bit buffers: with their square


class _Refs(NamedTuple):
    """Where a parameter's numbers are, and where the results go."""

    grads: Any  # [G, size]
    mean: Any  # [size]
    vector: Any  # [size], of the offset; else not looked at
    param: Any  # [size], of the move; else not looked at
    buffers: Any  # the arrays of `parts_of`
    result: Any
    new_mean: Any
    new_buffers: Any


def _refs_of(inputs: Sequence[Any], results: Sequence[Any]) -> _Refs:
    grads, mean, vector, param, *buffers = inputs
    result, new_mean, *new_buffers = results
    return _Refs(grads, mean, vector, param, buffers, result, new_mean, new_buffers)


class _Unrolled(NamedTuple):
    """Arithmetic over lists, an array for each group: an `OverGroups`."""

    num_groups: int
    hold: Callable[[int, jax.Array], tuple[Any, jax.Array]]  # of a group: what is stored, and what it stands for
    quantized: bool = False
    adds: bool = False

    def each(self, function: Callable[..., jax.Array], *values: Sequence[Any]) -> list[jax.Array]:
        return [function(*one) for one in zip(*values, strict=True)]

    def sum(self, values: Sequence[jax.Array]) -> jax.Array:
        return functools.reduce(operator.add, values)

    def weighted_sum(self, weights: Sequence[Any], values: Sequence[jax.Array]) -> jax.Array:
        return self.sum(self.each(operator.mul, weights, values))

    def by_cluster(self, cluster_mean: Sequence[Any], grads: Sequence[jax.Array]) -> list[jax.Array]:
        return [self.sum([mean * gradient for mean, gradient in zip(row, grads)]) for row in cluster_mean]

    def everywhere(self, value: jax.Array) -> list[jax.Array]:
        return [value] * self.num_groups

    def stored(self, values: Sequence[jax.Array], weights: Sequence[Any]) -> tuple[Sequence[Any], Sequence[jax.Array]]:
        if self.quantized:
            return held_in_turn(values, weights, self.hold)
        held, read = zip(*(self.hold(k, value) for k, value in enumerate(values)))
        return held, read


def _kernel(ids_ref, scalars_ref, numbers_ref, *refs, count, kind, block):
    """One block of one of the parameters. Loads and stores are written out for each of them, the arithmetic once."""
    own = len(refs) // count  # four inputs, two results, and the buffers twice
    ins, outs = own // 2 + 1, own // 2 - 1
    inputs, results = refs[: ins * count], refs[ins * count :]
    parameters = [_refs_of(inputs[ins * k : ins * (k + 1)], results[outs * k : outs * (k + 1)]) for k in range(count)]
    num_groups = parameters[0].grads.shape[0]
    which, number, first = jnp.int32(0), pl.program_id(0), 0
    for k in range(1, count):
        first += pl.cdiv(parameters[k - 1].mean.shape[0], block)
        reached = pl.program_id(0) >= first
        which = jnp.where(reached, k, which)
        number = jnp.where(reached, pl.program_id(0) - first, number)
    rows = rows_of(number, block, kind.buffer_dtype)
    at = rows.at

    def load_from(refs):
        load = functools.partial(plgpu.load, mask=at < refs.mean.shape[0], other=0.0)
        mean = load(refs.mean.at[at])
        param = load(refs.param.at[at]) if kind.moves else mean
        vector = param if kind.offset_is_param else load(refs.vector.at[at]) if kind.offset else mean
        grads = [load(refs.grads.at[jnp.full_like(at, k), at]).astype(mean.dtype) for k in range(num_groups)]
        old = [rows.load(refs.buffers, ids_ref[k]) for k in range(num_groups)]
        return mean, param, vector, grads, old

    loads = [functools.partial(load_from, refs) for refs in parameters]
    mean, param, vector, grads, old = loads[0]() if count == 1 else lax.switch(which, loads)
    offset = Offset(numbers_ref[0], numbers_ref[1], vector) if kind.offset else None
    weights = _unpack(scalars_ref, num_groups)
    step, start = (ids_ref[3 * num_groups + place] for place in range(2))
    groups = _Unrolled(
        num_groups,
        lambda k, value: rows.hold(value, step, ids_ref[2 * num_groups + k], start),
        kind.buffer_dtype == jnp.int8,
    )
    old = [rows.read(held) for held in old]
    result, new_mean, held = apply_rule(weights, grads, mean, old, offset, groups)
    if kind.moves:
        move = displacement(result, param, numbers_ref[2], numbers_ref[3] if kind.decays else None)
        result = param + jnp.where(weights.active, move, 0)

    def store_to(refs):
        for k in range(num_groups):
            target = ids_ref[num_groups + k]
            writes = target < refs.buffers[0].shape[0]
            rows.store(refs.new_buffers, jnp.where(writes, target, 0), held[k], writes)
        store = functools.partial(plgpu.store, mask=at < refs.mean.shape[0], eviction_policy=EVICT)
        store(refs.result.at[at], result)
        store(refs.new_mean.at[at], new_mean)

    for k, refs in enumerate(parameters):
        stores = functools.partial(store_to, refs)
        stores() if count == 1 else pl.when(which == k)(stores)


class Scalars(NamedTuple):
    """The scalars of one step, laid out for the kernel: made once, shared by all parameters."""

    ids: jax.Array  # int32 [3G + 3], the buffers to read, to write (N or more: none), clusters; step, start and turn
    values: jax.Array  # float32 [3 + 5G + G²]
    probs: jax.Array  # float32 [N]

    def starting_at(self, number: jax.Array) -> Scalars:
        """For a slice of a parameter, which is rounded as a part of the whole."""
        return self._replace(ids=self.ids.at[-2].set(number))


def pack(weights: Weights) -> Scalars:
    """Lays out the weights of a step for the kernel."""
    scalars = (weights.active[None], weights.mean_keep[None], weights.correction[None])
    vectors = (weights.valid, weights.share, weights.rate, weights.mean_old, weights.mean_new)
    values = (*scalars, *vectors, weights.cluster_mean.reshape(-1))
    turn = -1 if weights.turn is None else weights.turn
    numbers = jnp.stack([jnp.asarray(number, jnp.int32) for number in (weights.step, 0, turn)])
    ids = jnp.concatenate([weights.read_ids, weights.write_ids, weights.clusters, numbers])
    return Scalars(ids, jnp.concatenate([v.astype(jnp.float32) for v in values]), weights.probs.astype(jnp.float32))


def _unpack(values: Any, num_groups: int) -> Weights:
    """The weights again, from the kernel's memory: lists in place of vectors."""
    place = itertools.count()

    def vector() -> list[Any]:
        return [values[next(place)] for _ in range(num_groups)]

    active, mean_keep, correction = values[next(place)] > 0, values[next(place)], values[next(place)]
    valid, share, rate, mean_old, mean_new = [number > 0 for number in vector()], *(vector() for _ in range(4))
    rows = [vector() for _ in range(num_groups)]
    nothing = (None,) * 7
    return Weights(None, None, valid, active, share, correction, rows, rate, mean_keep, mean_old, mean_new, *nothing)


def update_in_kernels(
    scalars: Scalars,
    parameters: Sequence[Parameter],
    *,
    block: int = BLOCK,
    warps: int = WARPS,
    interpret: bool = False,
) -> list[Result]:
    """The rule for each of the parameters, of at most `MAX_GROUPS` groups and with a float32 mean."""
    alike: dict[Any, list[int]] = {}
    for number, one in sorted(enumerate(parameters), key=lambda pair: pair[1].mean.size):
        alone = number if one.mean.size > LARGE else None
        aligned = one.mean.size % 4 == 0  # every row begins where four numbers can be loaded at once
        alike.setdefault((kind_of(one), aligned, alone), []).append(number)
    results: dict[int, Result] = {}
    for numbers in alike.values():
        most = _most_together(parameters[numbers[0]])
        for few in (numbers[at : at + most] for at in range(0, len(numbers), most)):
            some = [parameters[number] for number in few]
            results |= zip(few, _launch(scalars, some, block=block, warps=warps, interpret=interpret))
    in_order = [results[number] for number in range(len(parameters))]
    return mean_kernel.with_part_afresh(scalars.ids, scalars.probs, in_order, interpret=interpret)


def _most_together(one: Parameter) -> int:
    """How many of its kind share a kernel."""
    rows = MOST_QUANTIZED_ROWS if is_quantized(one.buffers) else MOST_ROWS
    return max(1, min(MOST_TOGETHER, rows // len(one.grads)))


def _launch(
    scalars: Scalars, parameters: Sequence[Parameter], *, block: int, warps: int, interpret: bool
) -> list[Result]:
    """One kernel for all of these."""
    arguments: list[Any] = [scalars.ids, scalars.values, _numbers(parameters[0])]
    shapes, aliases, nothing = [], {}, jnp.zeros(1, jnp.float32)
    kind = kind_of(parameters[0])
    block = stretch(block, kind.buffer_dtype)
    for one in parameters:
        size, first, result = one.mean.size, len(arguments), len(shapes)
        same = kind_of(one).offset_is_param
        vector = nothing if one.offset is None or same else one.offset.vector.astype(one.mean.dtype).reshape(size)
        param = nothing if one.move is None else one.move.param.reshape(size)
        buffers = parts_of(one.buffers, size)
        arguments += [one.grads.reshape(-1, size), one.mean.reshape(size), vector, param, *buffers]
        aliases |= {first + 1: result + 1} | {first + 4 + k: result + 2 + k for k in range(len(buffers))}
        aliases |= {} if one.move is None else {first + 3: result}
        flat = jax.ShapeDtypeStruct((size,), one.mean.dtype)
        shapes += [flat, flat, *(jax.ShapeDtypeStruct(part.shape, part.dtype) for part in buffers)]
    results = pl.pallas_call(
        functools.partial(_kernel, count=len(parameters), kind=kind, block=block),
        out_shape=shapes,
        grid=(sum(pl.cdiv(one.mean.size, block) for one in parameters),),
        input_output_aliases=aliases,
        compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=1),
        interpret=interpret,
        name="discover_update",
    )(*arguments)
    each = len(results) // len(parameters)
    return [
        (first.reshape(one.mean.shape), mean.reshape(one.mean.shape), buffers_from(parts, one.buffers))
        for one, (first, mean, *parts) in zip(parameters, zip(*[iter(results)] * each, strict=True), strict=True)
    ]


def _numbers(one: Parameter) -> jax.Array:
    """The scalars of the offset and of the move, the same for all parameters of a kernel."""
    scale, factor = (1.0, 0.0) if one.offset is None else one.offset[:2]
    learning_rate, decay = (0.0, None) if one.move is None else one.move[1:]
    numbers = (scale, factor, learning_rate, 0.0 if decay is None else decay)
    return jnp.stack([jnp.asarray(number, jnp.float32) for number in numbers])
