"""Cuts joined arrays into their parts, as one GPU kernel.

XLA makes one kernel of each slice, and a network has a hundred of them.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

BLOCK = 512
MOST_PARTS = 128  # of all arrays; the time to compile a kernel grows with the square, a second one costs microseconds


def _kernel(*refs, num_arrays, starts, sizes, block):
    arrays, parts = refs[:num_arrays], refs[num_arrays:]
    first = starts[0] + pl.program_id(1) * block
    at = first + jnp.arange(block)
    row = pl.program_id(0)  # counted through all arrays
    for number, array in enumerate(arrays):
        num_rows, total = array.shape
        own = parts[number * len(sizes) : (number + 1) * len(sizes)]

        @pl.when((row >= 0) & (row < num_rows))
        def _(row=row, array=array, own=own, inside=at < total):
            index = jnp.full_like(at, row)
            value = plgpu.load(array.at[index, at], mask=inside, other=0.0)
            for start, size, part in zip(starts, sizes, own):

                @pl.when((first < start + size) & (first + block > start))
                def _(start=start, size=size, part=part):
                    here = at - start
                    mine = (here >= 0) & (here < size)
                    # `size` is out of range: the interpreter drops it, and a GPU does not look behind the mask.
                    plgpu.store(part.at[index, jnp.where(mine, here, size)], value, mask=mine)

        row = row - num_rows


def split(
    arrays: Sequence[jax.Array], sizes: Sequence[int], *, block: int = BLOCK, interpret: bool = False
) -> list[list[jax.Array]]:
    """For each array [rows, Σ sizes] its parts [rows, size]; none of the sizes is 0."""
    found: list[list[jax.Array]] = [[] for _ in arrays]
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    most = max(1, MOST_PARTS // len(arrays))
    for number in range(0, len(sizes), most):
        some = tuple(sizes[number : number + most])
        kernel = functools.partial(
            _kernel, num_arrays=len(arrays), starts=tuple(starts[number : number + most]), sizes=some, block=block
        )
        parts = pl.pallas_call(
            kernel,
            out_shape=[jax.ShapeDtypeStruct((len(array), size), array.dtype) for array in arrays for size in some],
            grid=(sum(len(array) for array in arrays), pl.cdiv(sum(some), block)),
            compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=1),
            interpret=interpret,
            name="discover_split",
        )(*arrays)
        for place, own in enumerate(found):
            own += parts[place * len(some) : (place + 1) * len(some)]
    return found
