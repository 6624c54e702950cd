"""The parameters of an update, one by one, or many small ones as a single long one.

A network has a hundred vectors, and a GPU needs longer to start a kernel than to update one of them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from discover.optim import split_kernel

# A GPU copies so many numbers in less than the time that it takes to start a kernel.
SMALL = 2**18  # in a parameter's buffers
SMALL_SUM = 2**15  # in a parameter

Result = tuple[jax.Array, jax.Array, jax.Array]
"""The direction, the new mean and the new buffers of a parameter."""


class Parameter(NamedTuple):
    """All that concerns one parameter in an update."""

    path: Any  # in the tree of parameters; None for a joined one
    grads: jax.Array  # [G, ...]
    mean: jax.Array  # [...], ḡ
    buffers: jax.Array  # [N, ...]
    affine: Any = None  # a `family.Affine` with this parameter's offset, or None


def map_parameters(
    rule: Callable[[Sequence[Parameter]], Sequence[Result]], grads: Any, state: Any, affine: Any
) -> tuple[Any, Any, Any]:
    """Applies `rule` to the parameters: trees of directions, means and buffers."""
    with_path, treedef = jax.tree_util.tree_flatten_with_path(grads)
    offsets = [None] * len(with_path) if affine is None else jax.tree.leaves(affine.offset)
    affines = [None if affine is None else affine._replace(offset=offset) for offset in offsets]
    each = zip(with_path, jax.tree.leaves(state.mean), jax.tree.leaves(state.buffers), affines, strict=True)
    results = rule([Parameter(path, grad, mean, buffers, affine) for (path, grad), mean, buffers, affine in each])
    direction, mean, buffers = (treedef.unflatten([r[part] for r in results]) for part in range(3))
    return direction, mean, buffers


def small_ones_together(
    rule: Callable[[Parameter], Result], can_join: Callable[[Parameter], bool]
) -> Callable[[Sequence[Parameter]], list[Result]]:
    """`rule` on each large parameter, and once on all the small ones that `can_join`, joined.

    The joined buffers are copied, those of clusters outside the batch too; hence only where they are small.
    """

    def on_all(parameters: Sequence[Parameter]) -> list[Result]:
        by_dtype: dict[Any, list[int]] = {}
        for number, parameter in enumerate(parameters):
            if can_join(parameter) and parameter.buffers.size <= SMALL:
                by_dtype.setdefault(parameter.buffers.dtype, []).append(number)
        results: dict[int, Result] = {}
        for numbers in by_dtype.values():
            small = [parameters[number] for number in numbers]
            if len(small) > 1:
                results.update(zip(numbers, split(rule(join(small)), small)))
        return [results[number] if number in results else rule(one) for number, one in enumerate(parameters)]

    return on_all


def join(parameters: Sequence[Parameter]) -> Parameter:
    """One parameter, a vector, that holds all of these; the dtypes of their means agree, and those of their buffers."""
    affine = parameters[0].affine  # its scale is the same for all parameters
    if affine is not None:
        affine = affine._replace(offset=_concatenate([one.affine.offset for one in parameters], lead=0))
    return Parameter(
        None,
        _concatenate([one.grads for one in parameters], lead=1),
        _concatenate([one.mean for one in parameters], lead=0),
        _concatenate([one.buffers for one in parameters], lead=1),
        affine,
    )


def split(result: Result, parameters: Sequence[Parameter]) -> list[Result]:
    """What became of each of the parameters that were joined."""
    direction, mean, buffers = result
    sizes = [one.mean.size for one in parameters]
    means, parts = split_kernel.split([mean[None], buffers], sizes)
    directions = jnp.split(direction, np.cumsum(sizes)[:-1])  # whatever comes next takes them from where they are
    return [
        (direction.reshape(one.mean.shape), mean.reshape(one.mean.shape), part.reshape(one.buffers.shape))
        for one, direction, mean, part in zip(parameters, directions, means, parts, strict=True)
    ]


def apply_updates(params: Any, updates: Any) -> Any:
    """`optax.apply_updates`, on a GPU with one sum for all the small parameters."""
    leaves, treedef = jax.tree.flatten(params)
    steps = treedef.flatten_up_to(updates)
    small = [n for n, p in enumerate(leaves) if 0 < p.size <= SMALL_SUM and p.dtype == jnp.float32]
    if jax.default_backend() != "gpu" or len(small) < 2:
        return optax.apply_updates(params, updates)
    before, step = (_concatenate([tree[n] for n in small], lead=0) for tree in (leaves, steps))
    (parts,) = split_kernel.split([(before + step).astype(before.dtype)[None]], [leaves[n].size for n in small])
    moved = {n: part.reshape(leaves[n].shape) for n, part in zip(small, parts, strict=True)}
    each = enumerate(zip(leaves, steps, strict=True))
    return treedef.unflatten([moved[n] if n in moved else optax.apply_updates(p, u) for n, (p, u) in each])


def _concatenate(arrays: Sequence[jax.Array], lead: int) -> jax.Array:
    """Side by side, everything behind the first ``lead`` axes flattened."""
    return jnp.concatenate([array.reshape(*array.shape[:lead], -1) for array in arrays], axis=lead)
