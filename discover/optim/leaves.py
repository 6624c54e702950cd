"""The parameters of an update, one by one, or many small ones as a single long one."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from discover.optim import split_kernel

SMALL = 2**18  # numbers in the buffers; a GPU copies them in the time that it takes to start a kernel

Result = tuple[jax.Array, jax.Array, jax.Array]
"""The direction, the new mean and the new buffers of a parameter."""


class Leaf(NamedTuple):
    """All that concerns one parameter in an update."""

    path: Any  # in the tree of parameters; None for a joined one
    grads: jax.Array  # [G, ...]
    mean: jax.Array  # [...], ḡ
    buffers: jax.Array  # [N, ...]
    affine: Any = None  # a `family.Affine` of this parameter, or None


def map_leaves(
    rule: Callable[[Sequence[Leaf]], Sequence[Result]], grads: Any, state: Any, affine: Any
) -> tuple[Any, Any, Any]:
    """Applies `rule` to the parameters: trees of directions, means and buffers."""
    with_path, treedef = jax.tree_util.tree_flatten_with_path(grads)
    offsets = [None] * len(with_path) if affine is None else jax.tree.leaves(affine.offset)
    affines = [None if affine is None else affine._replace(offset=offset) for offset in offsets]
    each = zip(with_path, jax.tree.leaves(state.mean), jax.tree.leaves(state.buffers), affines)
    results = rule([Leaf(path, grad, mean, buffers, affine) for (path, grad), mean, buffers, affine in each])
    direction, mean, buffers = (treedef.unflatten([r[part] for r in results]) for part in range(3))
    return direction, mean, buffers


def small_ones_together(rule: Callable[[Leaf], Result]) -> Callable[[Sequence[Leaf]], list[Result]]:
    """`rule` on each parameter, and once on all the small ones: a network has a hundred vectors, and a GPU needs longer
    to start a kernel than to update one of them.

    The joined buffers are copied, those of clusters outside the batch too; hence only where they are small.
    """

    def on_all(leaves: Sequence[Leaf]) -> list[Result]:
        by_dtype: dict[Any, list[int]] = {}
        for number, leaf in enumerate(leaves):
            if 0 < leaf.buffers.size <= SMALL:
                by_dtype.setdefault((leaf.mean.dtype, leaf.buffers.dtype), []).append(number)
        results: dict[int, Result] = {}
        for numbers in by_dtype.values():
            small = [leaves[number] for number in numbers]
            if len(small) > 1:
                results.update(zip(numbers, split(rule(join(small)), small)))
        return [results[number] if number in results else rule(leaf) for number, leaf in enumerate(leaves)]

    return on_all


def join(leaves: Sequence[Leaf]) -> Leaf:
    """One parameter, a vector, that holds all of these; they agree in their dtypes of mean and buffers."""
    dtype = leaves[0].mean.dtype
    affine = leaves[0].affine
    if affine is not None:
        affine = affine._replace(offset=_concatenate([leaf.affine.offset.astype(dtype) for leaf in leaves], lead=0))
    return Leaf(
        None,
        _concatenate([leaf.grads.astype(dtype) for leaf in leaves], lead=1),
        _concatenate([leaf.mean for leaf in leaves], lead=0),
        _concatenate([leaf.buffers for leaf in leaves], lead=1),
        affine,
    )


def split(result: Result, leaves: Sequence[Leaf]) -> list[Result]:
    """What became of each of the parameters that were joined."""
    direction, mean, buffers = result
    sizes = [leaf.mean.size for leaf in leaves]
    means, parts = split_kernel.split(mean, buffers, sizes)
    directions = jnp.split(direction, np.cumsum(sizes)[:-1])  # XLA adds them to the parameters where they are
    return [
        (direction.reshape(leaf.mean.shape), mean.reshape(leaf.mean.shape), part.reshape(leaf.buffers.shape))
        for leaf, direction, mean, part in zip(leaves, directions, means, parts)
    ]


def _concatenate(arrays: Sequence[jax.Array], lead: int) -> jax.Array:
    """Side by side, everything behind the first ``lead`` axes flattened."""
    return jnp.concatenate([array.reshape(*array.shape[:lead], -1) for array in arrays], axis=lead)
