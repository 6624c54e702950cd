"""A checksum of arrays, computed where they are: what was read is what was written, on any number of devices."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Lengths = tuple[tuple[int, int] | None, ...] | None
"""For each leaf of a state the axis that is cut into slices and its true length (None: whole); None if none is cut."""


def fingerprint(tree: Any, lengths: Lengths = None) -> list[int]:
    """A 32-bit checksum of the bits of every leaf, computed where the arrays are.

    Words are multiplied by odd numbers that depend on their place and summed modulo 2^32, so any single change of
    a word, and almost any other change, alters it. Integer arithmetic: the same on every device.

    Args:
        tree: the arrays.
        lengths: for each leaf None, or the (axis, length) that it is cut to before: the zeros at the end of slices
            depend on the number of devices, and the fingerprint should not.

    Example:
        >>> fingerprint([jnp.zeros(2), jnp.ones(2)]) == fingerprint([jnp.ones(2), jnp.zeros(2)])
        False
    """
    leaves = jax.tree.leaves(tree)
    return [int(x) for x in np.asarray(_fingerprint(leaves, lengths or (None,) * len(leaves)))]


@partial(jax.jit, static_argnums=1)
def _fingerprint(leaves: list[jax.Array], lengths: tuple[tuple[int, int] | None, ...]) -> jax.Array:
    def one(leaf: jax.Array, length: tuple[int, int] | None) -> jax.Array:
        if length is not None:
            leaf = jax.lax.slice_in_dim(leaf, 0, length[1], axis=length[0])
        if leaf.dtype == jnp.bool_:
            words = leaf.astype(jnp.uint32)
        else:
            unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}[leaf.dtype.itemsize]
            words = jax.lax.bitcast_convert_type(leaf, unsigned).astype(jnp.uint32)
        words = words.reshape(-1)
        places = jax.lax.iota(jnp.uint32, words.shape[0])
        return jnp.sum(words * (places * jnp.uint32(2654435762) + jnp.uint32(1)), dtype=jnp.uint32)

    return jnp.stack([one(leaf, length) for leaf, length in zip(leaves, lengths)])
