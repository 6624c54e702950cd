"""One gradient per example as rows of a matrix: whole, of some parameters only, or randomly projected.

Rows are computed a chunk at a time, so the memory is that of the result. A projection keeps inner products without
bias, with a relative error of about sqrt(2/features): enough to tell variances, and to cluster by.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from discover import group_value_and_grad

__all__ = ["GradientRows", "last_layer", "project_rows", "projection"]

Select = Callable[[str], bool]
MOST_AT_ONCE = 2**27
"""Numbers of the gradients that exist at once: half a gigabyte."""


def last_layer(path: str) -> bool:
    """Whether a parameter belongs to the layer called `head`, as the last one is in all models of this library."""
    return "head" in path.split("/")


class GradientRows:
    """Maps examples to their gradients, `[S, features]`.

    Args:
      loss_fn: `loss_fn(params, batch)`, the mean loss over a batch with leaves `[b, ...]`.
      params: where the gradient is taken.
      features: length of a row; longer gradients are projected to it. None keeps all parameters.
      select: which parameters count, by their path (`"layers/0/kernel"`); None means all.
      chunk: the most examples worked on at once; fewer where the network is large.
      seed: of the projection.

    Example:
      >>> import jax.numpy as jnp
      >>> loss = lambda w, batch: jnp.mean((batch["x"] @ w - batch["y"]) ** 2)
      >>> rows = GradientRows(loss, jnp.zeros(3))
      >>> rows({"x": jnp.eye(3), "y": jnp.ones(3)}).shape
      (3, 3)
    """

    def __init__(
        self,
        loss_fn: Callable[[Any, Any], Any],
        params: Any,
        *,
        features: int | None = None,
        select: Select | None = None,
        chunk: int = 64,
        seed: int = 0,
    ):
        if chunk < 1 or (features is not None and features < 1):
            raise ValueError(f"chunk and features must be at least 1, got {chunk} and {features}")
        named = jax.tree_util.tree_leaves_with_path(params)
        paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in named]
        keep = [select is None or select(path) for path in paths]
        length = sum(math.prod(np.shape(leaf)) for (_, leaf), kept in zip(named, keep) if kept)
        if not length:
            raise ValueError(f"no parameter is selected; there are {', '.join(paths) or 'none'}")
        whole = sum(math.prod(np.shape(leaf)) for _, leaf in named)
        self.chunk = chunk = max(1, min(chunk, MOST_AT_ONCE // whole))
        self.num_parameters = length
        self.features = length if features is None else min(features, length)
        self._params = params
        gradients = group_value_and_grad(loss_fn)
        project = None if self.features == length else projection(length, self.features, seed)

        def rows(params: Any, batch: Any) -> jax.Array:
            _, grads = gradients(params, jax.tree.map(lambda a: a[:, None], batch))
            chosen = [g.reshape(chunk, -1) for g, kept in zip(jax.tree.leaves(grads), keep) if kept]
            flat = jnp.concatenate(chosen, axis=1).astype(jnp.float32)
            return flat if project is None else project(flat)

        self._rows = jax.jit(rows)

    def at(self, params: Any) -> GradientRows:
        """The same gradients at other parameters of the same shapes, without compiling again."""
        other = copy.copy(self)
        other._params = params
        return other

    def __call__(self, batch: Any) -> NDArray[np.float32]:
        """The gradients of all examples of `batch` (leaves `[S, ...]`), in order."""
        return np.concatenate(list(self.stream([batch])))

    def stream(self, batches: Iterable[Any]) -> Iterator[NDArray[np.float32]]:
        """The gradients of batches (leaves `[S, ...]`) one after the other, in pieces of up to `chunk` rows.

        Only one piece exists at a time, so the data need not fit in memory.
        """
        for batch in batches:
            size = len(jax.tree.leaves(batch)[0])
            for first in range(0, size, self.chunk):
                piece = jax.tree.map(lambda a, first=first: a[first : first + self.chunk], batch)
                count = min(self.chunk, size - first)
                # The last piece is filled up with its first example: one shape, one compilation.
                piece = jax.tree.map(lambda a, n=count: _fill(a, self.chunk - n), piece)
                yield np.asarray(self._rows(self._params, piece))[:count]


def _fill(array: Any, missing: int) -> Any:
    if not missing:
        return array
    return np.concatenate([np.asarray(array), np.repeat(np.asarray(array[:1]), missing, axis=0)])


def projection(length: int, features: int, seed: int) -> Callable[[jax.Array], jax.Array]:
    """A count sketch: coordinates dealt to `features` sums at random, each with a random sign."""
    rng = np.random.default_rng(seed)
    depth = -(-length // features)
    order = rng.permutation(depth * features)
    signs = rng.choice(np.array([-1.0, 1.0], np.float32), depth * features)

    def project(flat: jax.Array) -> jax.Array:
        padded = jnp.pad(flat, ((0, 0), (0, depth * features - length)))
        return jnp.sum((padded[:, order] * signs).reshape(-1, depth, features), axis=1)

    return project


def project_rows(rows: NDArray[np.float32], features: int, seed: int = 0) -> NDArray[np.float32]:
    """Rows `[S, length]` projected to `features` numbers each, as long gradients are; shorter ones as they are."""
    if rows.shape[1] <= features:
        return rows
    return np.asarray(projection(rows.shape[1], features, seed)(jnp.asarray(rows)))
