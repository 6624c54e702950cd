"""A model as two pure functions, so that a training step is a pure function of its parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
from flax import nnx


class Apply(Protocol):
    """``apply(params, x, key=None) -> logits``; dropout is active exactly when there is a key."""

    def __call__(self, params: Any, x: jax.Array, key: jax.Array | None = None) -> jax.Array: ...


class Network(NamedTuple):
    """A model split once into its structure and its parameters (nested dictionaries of float32 arrays)."""

    init: Callable[[jax.Array], Any]  # key -> params
    apply: Apply
    num_parameters: int


def as_network(make: Callable[[nnx.Rngs], nnx.Module]) -> Network:
    """The pure functions of a flax module that is called as ``module(x, key=None) -> logits``; ``make`` makes it."""
    # eval_shape builds the structure without computing an initial parameter.
    graphdef, abstract = nnx.split(nnx.eval_shape(lambda: make(nnx.Rngs(jax.random.key(0)))), nnx.Param)

    def init(key: jax.Array) -> Any:
        return nnx.to_pure_dict(nnx.split(make(nnx.Rngs(key)), nnx.Param)[1])

    def apply(params: Any, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        return nnx.merge(graphdef, params)(x, key=key)

    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.to_pure_dict(abstract)))
    return Network(init, apply, count)
