"""What an update is told besides the gradients: one value, handed on from the outermost optimizer to the rule.

An optimizer of this library is a `GroupTransformation`: its gradients have a group axis, and its update takes a
`context`. Wrappers of optax's hand unknown arguments on, so the context reaches the rule through chains and partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

if TYPE_CHECKING:
    from discover.sharding.slices import Slices


Scalar = float | jax.Array
"""A hyperparameter: a number, also one that is traced."""


class Offset(NamedTuple):
    """Every group's gradient is replaced by scale·ĝ_k + factor·vector, inside the arithmetic of the rule.

    A penalty on the parameters adds the same vector to all groups, and so does gradient transport. Told so, the rule
    need not write the changed gradients to memory.
    """

    scale: Scalar  # []
    factor: Scalar  # []
    vector: Any  # leaves like the parameters; None for a parameter without it


def with_offset(offset: Offset | None, gradient: jax.Array) -> jax.Array:
    """scale·ĝ + factor·vector."""
    if offset is None:
        return gradient
    scale, factor = (jnp.asarray(number, gradient.dtype) for number in offset[:2])
    return scale * gradient + factor * offset.vector.astype(gradient.dtype)


class Move(NamedTuple):
    """Asks for the moved parameters in place of the direction: θ − μ·(d + λθ)."""

    param: Any  # leaves like the parameters, θ
    learning_rate: Scalar  # [], μ
    decay: Any  # λ, [] for each parameter; None for one that does not decay


def displacement(direction: jax.Array, param: Any, learning_rate: Scalar, decay: Scalar | None) -> jax.Array:
    """What a step adds to a parameter: −μ·(d + λθ). Not θ(1 − λμ): in float32 1 − λμ is 1 for a small λμ."""
    if decay is not None:
        direction = direction + jnp.asarray(decay, direction.dtype) * param
    return -jnp.asarray(learning_rate, direction.dtype) * direction


class Context(NamedTuple):
    """What the update of a `GroupTransformation` is told by whoever calls it."""

    offset: Offset | None = None
    move: Move | None = None  # for a direction
    answer_moved: bool = False  # for an optimizer: the answer may be `Moved`
    slices: Slices | None = None  # the parameters are slices of theirs, one on each device


NO_CONTEXT = Context()
"""What an update is told by a caller outside of the library."""


class Moved:
    """Parameters after a step, where an update was asked for. Not a tree, so that nobody takes it for one."""

    def __init__(self, params: Any):
        self.params = params


class GroupTransformation(optax.GradientTransformationExtraArgs):
    """A transformation of gradients with a group axis, whose update takes a `context`."""
