"""The parameters of an update, one by one, or many small ones as a single long one.

A network has a hundred vectors, and a GPU needs longer to start a kernel than to update one of them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from discover.context import Context, Move, Offset
from discover.gpu import split_kernel
from discover.quantized import is_quantized

SMALL = 2**18
"""So many numbers, those of a parameter's buffers, a GPU copies in less time than it takes to start a kernel."""


class Parameter(NamedTuple):
    """All that concerns one parameter in an update."""

    path: Any  # in the tree of parameters; None for a joined one
    grads: jax.Array  # [G, ...]
    mean: jax.Array  # [...], ḡ
    buffers: Any  # [N, ...], or `Quantized`
    offset: Offset | None  # with this parameter's vector
    move: Move | None  # with this parameter and its decay


Result = tuple[jax.Array, jax.Array, Any]
"""The direction (or the moved parameter), the new mean and the new buffers of a parameter."""
Update = Callable[[Sequence[Parameter]], Sequence[Result]]
"""Applies the rule to parameters."""


def map_parameters(update: Update, grads: Any, state: Any, context: Context) -> tuple[Any, Any, Any]:
    """Applies `update` to all parameters: trees of directions (or of moved parameters), means and buffers."""
    with_path, treedef = jax.tree_util.tree_flatten_with_path(grads)
    paths, leaves = zip(*with_path) if with_path else ((), ())
    everyone = zip(
        paths,
        leaves,
        jax.tree.leaves(state.mean),
        jax.tree.leaves(state.buffers, is_leaf=is_quantized),
        _offsets(context.offset, treedef),
        _moves(context.move, treedef),
        strict=True,
    )
    results = update([Parameter(*one) for one in everyone])
    first, mean, buffers = (treedef.unflatten([result[part] for result in results]) for part in range(3))
    return first, mean, buffers


def _offsets(offset: Offset | None, treedef: Any) -> list[Offset | None]:
    if offset is None:
        return [None] * treedef.num_leaves
    vectors = treedef.flatten_up_to(offset.vector)
    return [None if vector is None else offset._replace(vector=vector) for vector in vectors]


def _moves(move: Move | None, treedef: Any) -> list[Move | None]:
    if move is None:
        return [None] * treedef.num_leaves
    each = zip(treedef.flatten_up_to(move.param), treedef.flatten_up_to(move.decay), strict=True)
    return [Move(param, move.learning_rate, decay) for param, decay in each]


class Kind(NamedTuple):
    """What parameters have in common that are joined, or share a kernel."""

    offset: bool
    offset_is_param: bool  # the offset's vector is the parameter itself: it is read once
    moves: bool
    decays: bool
    gradient_dtype: Any
    buffer_dtype: Any  # int8 for `Quantized`


def kind_of(one: Parameter) -> Kind:
    """The kind of a parameter."""
    same = one.offset is not None and one.move is not None and one.offset.vector is one.move.param
    decays = one.move is not None and one.move.decay is not None
    return Kind(one.offset is not None, same, one.move is not None, decays, one.grads.dtype, dtype_of(one.buffers))


def dtype_of(buffers: Any) -> Any:
    """In what the buffers are kept, int8 for `Quantized`."""
    return jnp.dtype(jnp.int8) if is_quantized(buffers) else buffers.dtype


def small_ones_together(update: Update) -> Update:
    """`update` with the small parameters joined to one.

    The joined buffers are copied, those of clusters outside the batch too; hence only where they are small. Blocks of
    8-bit buffers do not go over the end of a parameter, so these stay apart.
    """

    def on_all(parameters: Sequence[Parameter]) -> list[Result]:
        alike: dict[Any, list[int]] = {}
        for number, one in enumerate(parameters):
            large = number if is_quantized(one.buffers) or one.buffers.size > SMALL else None
            alike.setdefault((kind_of(one)._replace(gradient_dtype=None), large), []).append(number)
        together = [[parameters[number] for number in numbers] for numbers in alike.values()]
        joined = update([few[0] if len(few) == 1 else join(few) for few in together])
        results: dict[int, Result] = {}
        for numbers, few, result in zip(alike.values(), together, joined, strict=True):
            results |= zip(numbers, [result] if len(few) == 1 else split(result, few))
        return [results[number] for number in range(len(parameters))]

    return on_all


def join(parameters: Sequence[Parameter]) -> Parameter:
    """One vector that holds all of these, which are of one kind."""
    offset, move = (
        parameters[0].offset,
        parameters[0].move,
    )  # their scalars are the same for all
    if move is not None:
        move = move._replace(param=_concatenate([one.move.param for one in parameters if one.move], lead=0))
    if offset is not None and move is not None and kind_of(parameters[0]).offset_is_param:
        offset = offset._replace(vector=move.param)
    elif offset is not None:
        offset = offset._replace(vector=_concatenate([one.offset.vector for one in parameters if one.offset], lead=0))
    return Parameter(
        None,
        _concatenate([one.grads for one in parameters], lead=1),
        _concatenate([one.mean for one in parameters], lead=0),
        _concatenate([one.buffers for one in parameters], lead=1),
        offset,
        move,
    )


def as_vector(update_one: Callable[[Parameter], Result], one: Parameter) -> Result:
    """What `update_one` makes of the parameter as one long row: XLA for CPUs is slow along short last axes."""
    if is_quantized(one.buffers):
        return update_one(one)
    first, mean, buffers = update_one(join([one]))
    return first.reshape(one.mean.shape), mean.reshape(one.mean.shape), buffers.reshape(one.buffers.shape)


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
