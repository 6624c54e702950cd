"""Damping as GPU kernels: the buffers are read twice, once for their products, once for the sum that is subtracted.

What XLA makes of the same lines writes the centred buffers to memory and reads them again for each product. Here a
thread holds the numbers of all k clusters that take part, and adds up their k(k + 1)/2 products as it goes.
"""

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from discover.gpu.rows import rows_of, stretch
from discover.sample import BLOCK as SAMPLED
from discover.sample import sample_of

MAX_CLUSTERS = 16  # the products of all pairs are held in registers
MOST_TOGETHER = 8  # parameters in a kernel
BLOCK, LONG_BLOCK = 128, 512  # numbers at a time, of a kernel with many sums and of one without
AT_ONCE = 2  # blocks whose numbers are on their way at the same time, where registers are full of sums
WARPS = 4
SHARE = 4096  # numbers of a parameter that are worth a program of their own
MOST_PROGRAMS = 512  # for one parameter: each ends with a sum over its threads for every product


class Flat(NamedTuple):
    """One parameter, as vectors."""

    direction: Any  # [size]
    mean: Any  # [size]
    buffers: Sequence[Any]  # the arrays of `parts_of`


def products(
    rows: jax.Array, probs: jax.Array | None, parameters: Sequence[Flat], *, interpret: bool = False
) -> list[tuple[jax.Array, jax.Array, jax.Array]]:
    """For each parameter (g_n − ḡ)·(g_m − ḡ), [k, k], (g_n − ḡ)·d, [k], and ḡ·ḡ, over the clusters n, m in `rows`.

    With the probabilities of all clusters ḡ is computed from the buffers, which are read anyway, and is not read.
    """
    k = rows.shape[0]
    pairs = list(itertools.combinations_with_replacement(range(k), 2))
    place = np.zeros((k, k), np.int32)
    for number, (n, m) in enumerate(pairs):
        place[n, m] = place[m, n] = number

    def launch(few: Sequence[Flat]) -> list[jax.Array]:
        programs = min(MOST_PROGRAMS, pl.cdiv(max(sample_of(one.mean.shape[0]).numbers for one in few), SHARE))
        kernel = functools.partial(
            _products_kernel, count=len(few), pairs=pairs, programs=programs, all_take_part=probs is not None
        )
        sums = pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((len(few) * programs, len(pairs) + k + 1), jnp.float32),
            grid=(len(few) * programs,),
            compiler_params=plgpu.CompilerParams(num_warps=WARPS, num_stages=1),
            interpret=interpret,
            name="discover_damping_products",
        )(
            rows,
            jnp.zeros(k, jnp.float32) if probs is None else probs.astype(jnp.float32),
            *jax.tree.leaves(few),
        )
        return list(jnp.sum(sums.reshape(len(few), programs, -1), axis=1))

    return [(sums[: len(pairs)][place], sums[len(pairs) : -1], sums[-1]) for sums in _together(parameters, launch)]


def _products_kernel(rows_ref, probs_ref, *refs, count, pairs, programs, all_take_part):
    *inputs, sums_ref = refs
    parameters = _parameters(inputs, count)
    k = rows_ref.shape[0]
    which, number = pl.program_id(0) // programs, pl.program_id(0) % programs

    def sums_of(one: Flat) -> tuple[jax.Array, ...]:
        size = one.mean.shape[0]
        sample = sample_of(size)
        length = stretch(BLOCK, _dtype(one)) if sample.stride == 1 else SAMPLED
        shape, read = rows_of(0, length, _dtype(one)).at.shape, rows_of(0, length, _dtype(one)).read
        turns = pl.cdiv(sample.numbers, programs * length * AT_ONCE)

        def loaded(number: Any) -> tuple[list[Any], jax.Array, jax.Array | None]:
            past = pl.cdiv(size, length)  # nothing is read there
            block = number if sample.stride == 1 else jnp.where(number < sample.blocks, sample.block(number), past)
            buffers, load = _loading(one, block, length)
            rows = [buffers.load(one.buffers, rows_ref[n]) for n in range(k)]
            return rows, load(one.direction), None if all_take_part else load(one.mean)

        def new_products(rows: list[Any], d: jax.Array, mean: jax.Array | None) -> list[jax.Array]:
            rows = [read(row) for row in rows]
            terms = [mean] if mean is not None else [probs_ref[n] * row for n, row in enumerate(rows)]
            centre: Any = functools.reduce(operator.add, terms)
            u = [row - centre for row in rows]
            return [*(u[n] * u[m] for n, m in pairs), *(row * d for row in u), centre * centre]

        def add(turn: Any, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            first = (number * turns + turn) * AT_ONCE
            for block in [loaded(first + place) for place in range(AT_ONCE)]:
                sums = tuple(old + more for old, more in zip(sums, new_products(*block), strict=True))
            return sums

        zeros = tuple(jnp.zeros(shape, jnp.float32) for _ in range(len(pairs) + k + 1))
        return lax.fori_loop(0, turns, add, zeros)

    found = _switch(which, [functools.partial(sums_of, one) for one in parameters])
    for column, values in enumerate(found):
        sums_ref[pl.program_id(0), column] = _total(values)


def subtract(
    rows: jax.Array,
    weights: jax.Array,
    of_mean: jax.Array | None,
    parameters: Sequence[Flat],
    *,
    interpret: bool = False,
) -> list[jax.Array]:
    """For each parameter d − Σ_n c_n g_n − c̄ḡ, over the clusters n in `rows`, with its c in `weights`, [L, k].

    Without `of_mean`, c̄ of each parameter, [L], ḡ is not read.
    """
    numbers = weights if of_mean is None else jnp.concatenate([weights, of_mean[:, None]], axis=1)

    def launch(numbered: Sequence[tuple[jax.Array, Flat]]) -> list[jax.Array]:
        few = [one for _, one in numbered]
        programs = [pl.cdiv(one.mean.shape[0], stretch(LONG_BLOCK, _dtype(one))) for one in few]
        kernel = functools.partial(_subtract_kernel, starts=[0, *itertools.accumulate(programs)][:-1])
        return pl.pallas_call(
            kernel,
            out_shape=[jax.ShapeDtypeStruct(one.direction.shape, one.direction.dtype) for one in few],
            grid=(sum(programs),),
            input_output_aliases={2 + (2 + len(few[0].buffers)) * number: number for number in range(len(few))},
            compiler_params=plgpu.CompilerParams(num_warps=WARPS, num_stages=1),
            interpret=interpret,
            name="discover_damping_subtract",
        )(rows, jnp.stack([own for own, _ in numbered]), *jax.tree.leaves(few))

    return _together(list(zip(numbers, parameters, strict=True)), launch, size=lambda pair: pair[1].mean.size)


def _subtract_kernel(rows_ref, weights_ref, *refs, starts):
    count, k = len(starts), rows_ref.shape[0]
    parameters, results = _parameters(refs[:-count], count), refs[-count:]
    which, number = jnp.int32(0), pl.program_id(0)
    for place, start in enumerate(starts):
        which = jnp.where(pl.program_id(0) >= start, place, which)
        number = jnp.where(pl.program_id(0) >= start, pl.program_id(0) - start, number)

    def subtracted(place: int) -> None:
        one = parameters[place]
        rows, load = _loading(one, number, stretch(LONG_BLOCK, _dtype(one)))
        d, terms = load(one.direction), [rows.read(rows.load(one.buffers, rows_ref[n])) for n in range(k)]
        if weights_ref.shape[1] > k:
            terms.append(load(one.mean))
        for n, term in enumerate(terms):
            d = d - weights_ref[place, n] * term
        plgpu.store(results[place].at[rows.at], d, mask=rows.at < one.mean.shape[0])

    for place in range(count):
        one = functools.partial(subtracted, place)
        one() if count == 1 else pl.when(which == place)(one)


def solve(systems: jax.Array, right: jax.Array, *, interpret: bool = False) -> jax.Array:
    """A⁻¹b for symmetric positive definite A [L, k, k] and b [L, k], k up to `MAX_CLUSTERS`: one program for each."""
    count, k, _ = systems.shape
    rows, columns = MAX_CLUSTERS, 2 * MAX_CLUSTERS  # powers of 2
    both = jnp.pad(jnp.concatenate([systems, right[..., None]], axis=2), ((0, 0), (0, rows - k), (0, columns - k - 1)))
    return pl.pallas_call(
        functools.partial(_solve_kernel, k=k),
        out_shape=jax.ShapeDtypeStruct((count, rows), systems.dtype),
        grid=(count,),
        compiler_params=plgpu.CompilerParams(num_warps=1, num_stages=1),
        interpret=interpret,
        name="discover_damping_solve",
    )(both)[:, :k]


def _total(values: jax.Array) -> jax.Array:
    """The sum over all axes, one by one: jax 0.12 cannot lower several at once for a GPU under an explicit mesh."""
    while values.ndim:
        values = jnp.sum(values, axis=-1)
    return values


def _solve_kernel(both_ref, solution_ref, *, k):
    """Gauss and Jordan's elimination. What is positive definite needs no exchange of rows."""
    system = both_ref[pl.program_id(0)]
    row, column = (lax.broadcasted_iota(jnp.int32, system.shape, axis) for axis in (0, 1))

    def eliminate(place, system):
        own_row = jnp.sum(jnp.where(row == place, system, 0), axis=0)
        own_column = jnp.sum(jnp.where(column == place, system, 0), axis=1)
        pivot = _total(jnp.where((row == place) & (column == place), system, 0))
        is_own = (jnp.arange(system.shape[0]) == place).astype(system.dtype)
        return system - (own_column - is_own)[:, None] * (own_row / pivot)[None, :]

    system = lax.fori_loop(0, k, eliminate, system)
    solution_ref[pl.program_id(0)] = jnp.sum(jnp.where(column == k, system, 0), axis=1)


def _parameters(refs: Sequence[Any], count: int) -> list[Flat]:
    own = len(refs) // count
    each = (refs[own * number : own * (number + 1)] for number in range(count))
    return [Flat(direction, mean, buffers) for direction, mean, *buffers in each]


def _dtype(one: Flat) -> Any:
    return one.buffers[0].dtype if len(one.buffers) == 1 else jnp.int8


def _loading(one: Flat, index: Any, length: int) -> tuple[Any, Callable[[Any], jax.Array]]:
    """A stretch of a parameter: of its buffers, and what loads it from its vectors."""
    rows = rows_of(index, length, _dtype(one))
    return rows, lambda vector: plgpu.load(vector.at[rows.at], mask=rows.at < vector.shape[0], other=0.0)


def _switch(which: Any, branches: Sequence[Callable[[], Any]]) -> Any:
    return branches[0]() if len(branches) == 1 else lax.switch(which, branches)


def _together(
    parameters: Sequence[Any],
    launch: Callable[[Sequence[Any]], Sequence[jax.Array]],
    size: Callable[[Any], int] = lambda one: one.mean.size,
) -> list[jax.Array]:
    """`launch` on a few parameters at a time, those of like size together; the results in their order."""
    order = sorted(range(len(parameters)), key=lambda number: size(parameters[number]))
    results: dict[int, jax.Array] = {}
    for first in range(0, len(order), MOST_TOGETHER):
        few = order[first : first + MOST_TOGETHER]
        results |= zip(few, launch([parameters[number] for number in few]), strict=True)
    return [results[number] for number in range(len(parameters))]
