"""The parameters of an update, one by one, or many small ones as a single long one.

A network has a hundred vectors, and a GPU needs longer to start a kernel than to update one of them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from discover.gpu import split_kernel

SMALL = 2**18
"""So many numbers, those of a parameter's buffers, a GPU copies in less time than it takes to start a kernel."""

Result = tuple[jax.Array, jax.Array, jax.Array]
"""The direction (or the moved parameter), the new mean and the new buffers of a parameter."""


class Move(NamedTuple):
    """Asks for the moved parameter in place of a direction: θ − `rate`·(d + `decay`·θ), each gradient + `penalty`·θ."""

    param: Any  # [...], θ
    numbers: Any  # float32 [3]: penalty, decay, rate; the same for all parameters of an update
    penalised: bool
    decays: bool


class Parameter(NamedTuple):
    """All that concerns one parameter in an update."""

    path: Any  # in the tree of parameters; None for a joined one
    grads: jax.Array  # [G, ...]
    mean: jax.Array  # [...], ḡ
    buffers: jax.Array  # [N, ...]
    affine: Any = None  # a `family.Affine` with this parameter's offset, or None
    move: Move | None = None


def map_parameters(
    rule: Callable[[Sequence[Parameter]], Sequence[Result]], grads: Any, state: Any, affine: Any, moves: Any = None
) -> tuple[Any, Any, Any]:
    """Applies `rule` to the parameters: trees of directions, means and buffers.

    With `moves`, a list with a `Move` for each parameter, the first is the tree of the moved parameters.
    """
    with_path, treedef = jax.tree_util.tree_flatten_with_path(grads)
    offsets = [None] * len(with_path) if affine is None else jax.tree.leaves(affine.offset)
    affines = [None if affine is None else affine._replace(offset=offset) for offset in offsets]
    moves = [None] * len(with_path) if moves is None else moves
    paths, grads = zip(*with_path) if with_path else ((), ())
    means, buffers = jax.tree.leaves(state.mean), jax.tree.leaves(state.buffers)
    results = rule([Parameter(*one) for one in zip(paths, grads, means, buffers, affines, moves, strict=True)])
    direction, mean, buffers = (treedef.unflatten([r[part] for r in results]) for part in range(3))
    return direction, mean, buffers


def small_ones_together(
    rule: Callable[[Sequence[Parameter]], Sequence[Result]],
) -> Callable[[Sequence[Parameter]], list[Result]]:
    """`rule` with the small parameters joined to one.

    The joined buffers are copied, those of clusters outside the batch too; hence only where they are small.
    """

    def on_all(parameters: Sequence[Parameter]) -> list[Result]:
        alike: dict[Any, list[int]] = {}
        for number, one in enumerate(parameters):
            kind = one.move and (one.move.penalised, one.move.decays)
            large = number if one.buffers.size > SMALL else None
            alike.setdefault((one.buffers.dtype, kind, large), []).append(number)
        together = [[parameters[number] for number in numbers] for numbers in alike.values()]
        joined = rule([few[0] if len(few) == 1 else join(few) for few in together])
        results: dict[int, Result] = {}
        for numbers, few, result in zip(alike.values(), together, joined, strict=True):
            results |= zip(numbers, [result] if len(few) == 1 else split(result, few))
        return [results[number] for number in range(len(parameters))]

    return on_all


def join(parameters: Sequence[Parameter]) -> Parameter:
    """One vector that holds all of these; they agree in the buffers' dtype and in what their moves contain."""
    affine = parameters[0].affine  # its scale is the same for all parameters
    if affine is not None:
        affine = affine._replace(offset=_concatenate([one.affine.offset for one in parameters], lead=0))
    move = parameters[0].move
    if move is not None:
        move = move._replace(param=_concatenate([one.move.param for one in parameters if one.move], lead=0))
    return Parameter(
        None,
        _concatenate([one.grads for one in parameters], lead=1),
        _concatenate([one.mean for one in parameters], lead=0),
        _concatenate([one.buffers for one in parameters], lead=1),
        affine,
        move,
    )


def split(result: Result, parameters: Sequence[Parameter]) -> list[Result]:
    """What became of each of the parameters that were joined."""
    first, mean, buffers = result
    sizes = [one.mean.size for one in parameters]
    if parameters[0].move is None:
        means, parts = split_kernel.split([mean[None], buffers], sizes)
        firsts = jnp.split(first, np.cumsum(sizes)[:-1])  # whatever comes next takes directions from where they are
    else:
        firsts, means, parts = split_kernel.split([first[None], mean[None], buffers], sizes)
    return [
        (first.reshape(one.mean.shape), mean.reshape(one.mean.shape), part.reshape(one.buffers.shape))
        for one, first, mean, part in zip(parameters, firsts, means, parts, strict=True)
    ]


def _concatenate(arrays: Sequence[jax.Array], lead: int) -> jax.Array:
    """Side by side, everything behind the first ``lead`` axes flattened."""
    return jnp.concatenate([array.reshape(*array.shape[:lead], -1) for array in arrays], axis=lead)
