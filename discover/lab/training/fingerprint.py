"""A checksum of arrays, computed where they are: what was read is what was written, on any number of devices."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

READ_TOGETHER = 256 << 20
"""Bytes that are read back from a disk at a time."""

WORDS_TOGETHER = 1 << 24
"""Words that are added up at a time on the host."""

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
    each = list(zip(leaves, lengths or (None,) * len(leaves)))
    on_device = [(leaf, length) for leaf, length in each if not is_on_host(leaf)]
    found = iter(np.asarray(_fingerprint([leaf for leaf, _ in on_device], tuple(length for _, length in on_device))))
    return [
        fingerprint_on_host(np.asarray(leaf), length) if is_on_host(leaf) else int(next(found)) for leaf, length in each
    ]


def is_on_host(leaf: Any) -> bool:
    """Whether an array lies, or is to lie, in the host's memory beside a device."""
    return getattr(getattr(leaf, "sharding", None), "memory_kind", None) == "pinned_host"


def fingerprint_on_host(leaf: np.ndarray, length: tuple[int, int] | None = None) -> int:
    """The same of one leaf, computed without a device: of what was read back from a disk.

    Example:
        >>> [fingerprint_on_host(np.ones(2, np.float32))] == fingerprint([jnp.ones(2)])
        True
    """
    if length is not None:
        leaf = np.take(leaf, range(length[1]), axis=length[0])
    unsigned = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint32}[leaf.dtype.itemsize]
    words = np.ascontiguousarray(leaf).reshape(-1).view(unsigned)
    total = 0
    for first in range(0, len(words), WORDS_TOGETHER):
        some = words[first : first + WORDS_TOGETHER].astype(np.uint32)
        places = (np.arange(len(some)) + first).astype(np.uint32)
        total += int(np.sum(some * (places * np.uint32(2654435762) + np.uint32(1)), dtype=np.uint32))
    return total % 2**32


def fingerprint_of_file(state: Path, lengths: Lengths) -> list[int]:
    """The fingerprint of the arrays that are on the disk, read a few at a time: never all of them in memory."""
    handler: Any = ocp.PyTreeCheckpointHandler()
    found: dict[str, int] = {}
    sizes = {str(name): one for name, one in dict(handler.metadata(state).tree).items()}
    names = sorted(sizes)
    cut = dict(zip(names, lengths)) if lengths is not None else {}
    while names:
        some, total = [], 0
        while names and (not some or total < READ_TOGETHER):
            one = sizes[names[0]]
            total += math.prod(one.shape) * np.dtype(one.dtype).itemsize
            some.append(names.pop(0))
        item = {name: jax.ShapeDtypeStruct(sizes[name].shape, sizes[name].dtype) for name in some}
        how = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in some}
        arguments = ocp.args.PyTreeRestore(item=item, restore_args=how, partial_restore=True)
        for name, array in handler.restore(state, args=arguments).items():
            found[name] = fingerprint_on_host(np.asarray(array), cut.get(name))
    return [found[name] for name in sorted(found)]


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

    sums = [one(leaf, length) for leaf, length in zip(leaves, lengths)]
    return jnp.stack(sums) if sums else jnp.zeros(0, jnp.uint32)
