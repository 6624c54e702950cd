"""Cuts a joined mean and its joined buffers into those of the parameters, as one GPU kernel.

XLA makes one kernel of each slice, and a network has a hundred of them.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

BLOCK = 512
MOST_PARTS = 128  # a kernel takes so many arguments, and no more


def _kernel(mean_ref, buffers_ref, *part_refs, starts, sizes, block):
    num_clusters, total = buffers_ref.shape
    row, first = pl.program_id(0), starts[0] + pl.program_id(1) * block
    at = first + jnp.arange(block)
    inside = at < total
    is_mean = row == num_clusters
    means, buffers = part_refs[: len(sizes)], part_refs[len(sizes) :]

    def store(parts, index, value):
        for start, size, part in zip(starts, sizes, parts):

            @pl.when((first < start + size) & (first + block > start))
            def _(start=start, size=size, part=part):
                here = at - start
                mine = (here >= 0) & (here < size)
                plgpu.store(part.at[(*index, jnp.where(mine, here, size))], value, mask=mine)

    @pl.when(is_mean)
    def _():
        store(means, (), plgpu.load(mean_ref.at[at], mask=inside, other=0))

    @pl.when(jnp.logical_not(is_mean))
    def _():
        index = jnp.full_like(at, row)
        store(buffers, (index,), plgpu.load(buffers_ref.at[index, at], mask=inside, other=0))


def split(
    mean: jax.Array, buffers: jax.Array, sizes: Sequence[int], *, block: int = BLOCK, interpret: bool = False
) -> tuple[list[jax.Array], list[jax.Array]]:
    """The parts of `mean` [S] and of `buffers` [N, S], S = Σ `sizes`; none of the sizes is 0."""
    means: list[jax.Array] = []
    parts: list[jax.Array] = []
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    for number in range(0, len(sizes), MOST_PARTS):
        some, begin = tuple(sizes[number : number + MOST_PARTS]), tuple(starts[number : number + MOST_PARTS])
        found = pl.pallas_call(
            functools.partial(_kernel, starts=begin, sizes=some, block=block),
            out_shape=[jax.ShapeDtypeStruct((size,), mean.dtype) for size in some]
            + [jax.ShapeDtypeStruct((buffers.shape[0], size), buffers.dtype) for size in some],
            grid=(buffers.shape[0] + 1, pl.cdiv(sum(some), block)),
            compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=1),
            interpret=interpret,
            name="discover_split",
        )(mean, buffers)
        means += found[: len(some)]
        parts += found[len(some) :]
    return means, parts
