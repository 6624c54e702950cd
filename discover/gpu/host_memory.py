"""Buffers in the host's memory: those of the batch's clusters come to the device, and go back.

A cluster's buffers are a row of a few long arrays, one for each dtype, so that a step moves few pieces. Which rows
come is known before the gradients are, and the compiler can fetch them meanwhile. On a CPU all memory is the host's:
the same program, and the same numbers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from discover.quantized import all_values
from discover.rule import Weights

PLACES = ("device", "host")


class HostBuffers(NamedTuple):
    """The buffers of all parameters, where `buffers="host"`."""

    rows: tuple[Any, ...]  # for each dtype of the buffers [N, numbers of all parameters]


def is_on_host(node: Any) -> bool:
    """For `jax.tree` functions, where these buffers are to be one thing."""
    return isinstance(node, HostBuffers)


def zeros_on_host(like: Any) -> HostBuffers:
    """Zeros in place of the buffers `like`, a tree of shapes [N, ...]."""
    layout = _layout(like)
    return HostBuffers(
        tuple(
            jax.device_put(jnp.zeros((leaves[0].shape[0], sum(map(_width, leaves))), dtype), jax.memory.Space.Host)
            for dtype, leaves in layout.items()
        )
    )


def fetch(host: HostBuffers, ids: jax.Array, like: Any) -> Any:
    """The rows of these clusters on the device: a tree like the buffers, with leaves [G, ...]."""
    leaves, tree = jax.tree.flatten(like)
    parts: dict[Any, list[jax.Array]] = {}
    for (dtype, own), array in zip(_layout(like).items(), host.rows, strict=True):
        rows = jnp.concatenate([_to_device(_row(array, ids[k])) for k in range(ids.shape[0])])
        ends = [sum(map(_width, own[: place + 1])) for place in range(len(own))]
        parts[dtype] = jnp.split(rows, ends[:-1], axis=1)
    found = [parts[leaf.dtype].pop(0).reshape(ids.shape[0], *leaf.shape[1:]) for leaf in leaves]
    return tree.unflatten(found)


def give_back(host: HostBuffers, ids: jax.Array, buffers: Any) -> HostBuffers:
    """The host's rows with those of these clusters replaced."""
    arrays = []
    for own, array in zip(_layout(buffers).values(), host.rows, strict=True):
        rows = jnp.concatenate([leaf.reshape(ids.shape[0], -1) for leaf in own], axis=1)
        for k in range(ids.shape[0]):
            row = jax.device_put(rows[k : k + 1], jax.memory.Space.Host)
            array = jax.lax.dynamic_update_slice(array, row, (ids[k], jnp.zeros_like(ids[k])))
        arrays.append(array)
    return HostBuffers(tuple(arrays))


def with_rows(
    host: HostBuffers, weights: Weights, like: Any, update: Callable[[Weights, Any], tuple[Any, Any, Any]]
) -> tuple[Any, Any, HostBuffers]:
    """What `update(weights, buffers)` answers, whose buffers are the rows of the batch, one for each group.

    Args:
      host: all buffers.
      weights: of the step.
      like: shapes of the buffers, [N, ...].
      update: returns something, ḡ and new buffers.

    Returns:
      The same, with all buffers in place of those of the batch.
    """
    _check_on_host(host)
    groups = jnp.arange(weights.read_ids.shape[0], dtype=jnp.int32)
    ids, valid = weights.read_ids, weights.valid
    same = (ids[:, None] == ids[None, :]) & valid[None, :]
    # A group that does not count, or whose cluster came before, stands for one that writes: it gives back the same row.
    source = jnp.argmax(jnp.where(valid[:, None], same, valid[None, :]), axis=1).astype(jnp.int32)
    first = valid & (source == groups)
    local = weights._replace(read_ids=source, write_ids=jnp.where(first, groups, groups.shape[0] + groups), turn=None)
    answer, mean, new = update(local, fetch(host, ids, like))
    return answer, mean, give_back(host, ids[source], jax.tree.map(lambda rows: rows[source], new))


def summed_rows(host: HostBuffers, probs: jax.Array, like: Any, mean: Any) -> Any:
    """Σ_n p_n g_n, a row after the other; a tree like ḡ."""

    def add(n: Any, total: Any) -> Any:
        row = all_values(fetch(host, jnp.asarray(n, jnp.int32)[None], like), mean)
        return jax.tree.map(lambda t, g: t + probs[n].astype(t.dtype) * g[0], total, row)

    return jax.lax.fori_loop(0, probs.size, add, jax.tree.map(jnp.zeros_like, mean))


def _layout(buffers: Any) -> dict[Any, list[Any]]:
    """The leaves by dtype, in their order."""
    found: dict[Any, list[Any]] = {}
    for leaf in jax.tree.leaves(buffers):
        found.setdefault(leaf.dtype, []).append(leaf)
    return found


def _check_on_host(host: HostBuffers) -> None:
    """Raises where a state was read back to a device's memory, in words that say how to mend it."""
    for array in host.rows:
        if getattr(jax.typeof(array), "memory_space", None) == jax.memory.Space.Device:
            raise ValueError(
                "the buffers must be in the host's memory, got them in the device's: "
                "jax.device_put(array, array.sharding.with_memory_kind('pinned_host')) moves those of a state there"
            )


def _width(leaf: Any) -> int:
    return leaf.size // leaf.shape[0]


def _row(array: Any, number: jax.Array) -> Any:
    return jax.lax.dynamic_slice(array, (number, jnp.zeros_like(number)), (1, array.shape[1]))


def _to_device(array: Any) -> jax.Array:
    return jax.device_put(array, jax.memory.Space.Device)
