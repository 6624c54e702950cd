"""ḡ summed afresh, Σ_n p_n g_n, as a GPU kernel: a part at each step, of every number once in `AFRESH` steps.

It is not a part of the update's kernel: with it that one took a sixth longer at eight groups (docs/notes/kernels.md),
and where it is a block's turn there, the block reads the rows of all clusters one after the other while the launch
waits. Here rows are read many at a time, and one launch serves many parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from discover.gpu.parameters import Result, dtype_of
from discover.gpu.rows import parts_of, rows_of
from discover.quantized import BLOCK
from discover.rule import AFRESH

MOST_TOGETHER = 32  # parameters in a kernel
MOST_ROWS = 16  # that are read at once
WARPS = 4


def with_part_afresh(
    numbers_with_turn: jax.Array, probs: jax.Array, results: Sequence[Result], *, interpret: bool = False
) -> list[Result]:
    """The results with those pieces of ḡ, a block long, whose turn it is.

    Args:
      numbers_with_turn: int32 [...], the last says whose turn it is, of `AFRESH`; −1: nobody's.
      probs: float32 [N], p_n.
      results: of the update.
      interpret: for tests without a GPU.
    """
    alike: dict[Any, list[int]] = {}
    for number, (_, _, buffers) in enumerate(results):
        alike.setdefault(dtype_of(buffers), []).append(number)
    found = list(results)
    for dtype, numbers in alike.items():
        for few in (numbers[at : at + MOST_TOGETHER] for at in range(0, len(numbers), MOST_TOGETHER)):
            means = _launch((numbers_with_turn, probs), [results[number] for number in few], dtype, interpret)
            for number, mean in zip(few, means, strict=True):
                first, old, buffers = found[number]
                found[number] = first, mean.reshape(old.shape), buffers
    return found


def _launch(shared: Sequence[Any], results: Sequence[Result], dtype: Any, interpret: bool) -> Sequence[jax.Array]:
    arguments = list(shared)
    aliases = {}
    for number, (_, mean, buffers) in enumerate(results):
        aliases[len(arguments)] = number
        arguments += [mean.reshape(mean.size), *parts_of(buffers, mean.size)]
    sizes = [mean.size for _, mean, _ in results]
    return pl.pallas_call(
        functools.partial(_kernel, count=len(results), dtype=dtype),
        out_shape=[jax.ShapeDtypeStruct((size,), mean.dtype) for size, (_, mean, _) in zip(sizes, results)],
        grid=(sum(_pieces_at_a_step(size) for size in sizes),),
        input_output_aliases=aliases,
        compiler_params=plgpu.CompilerParams(num_warps=WARPS, num_stages=1),
        interpret=interpret,
        name="discover_mean",
    )(*arguments)


def _pieces_at_a_step(size: int) -> int:
    return pl.cdiv(pl.cdiv(size, BLOCK), AFRESH)


def _kernel(numbers_ref, probs_ref, *refs, count, dtype):
    """One piece of one of the parameters."""
    inputs, means = refs[:-count], refs[-count:]
    own = len(inputs) // count  # ḡ, then the arrays of `parts_of`
    first, turn, number = 0, numbers_ref[numbers_ref.shape[0] - 1], pl.program_id(0)
    for k, mean in enumerate(means):
        last = first + _pieces_at_a_step(mean.shape[0])
        here = (turn >= 0) & (number >= first) & (number < last)
        rows = rows_of(turn + AFRESH * (number - first), BLOCK, dtype)
        pl.when(here)(functools.partial(_sum_piece, probs_ref, inputs[own * k + 1 : own * (k + 1)], mean, rows))
        first = last


def _sum_piece(probs_ref: Any, parts: Sequence[Any], mean: Any, rows: Any) -> None:
    num_clusters = probs_ref.shape[0]
    together = min(MOST_ROWS, pl.next_power_of_2(num_clusters))

    def add(step: Any, total: jax.Array) -> jax.Array:
        clusters = step * together + jnp.arange(together)
        known = clusters < num_clusters
        clusters = jnp.where(known, clusters, 0)
        probs = plgpu.load(probs_ref.at[clusters], mask=known, other=0.0)
        values = rows.read(rows.load(parts, clusters))
        return total + jnp.sum(probs.reshape(-1, *(1,) * (values.ndim - 1)) * values, axis=0)

    zeros = jnp.zeros(rows.at.shape, jnp.float32)
    total = lax.fori_loop(0, pl.cdiv(num_clusters, together), add, zeros)
    plgpu.store(mean.at[rows.at], total, mask=rows.at < mean.shape[0])
