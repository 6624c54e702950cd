r"""In which layers the gradient's noise lies between clusters: where one buffer per cluster is worth its memory.

The parts of `variance.py`, of each layer's gradient by itself; those of all layers add up to the whole network's. One
pass over the examples, which keeps one mean per cluster of each layer and no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from discover import group_value_and_grad
from discover.lab.diagnostics.batches import batch_noise
from discover.lab.diagnostics.gradients import projection
from discover.lab.diagnostics.variance import Floats, finite_factors

__all__ = ["LARGEST_LAYER", "Layer", "layer_variances", "ranked"]

LARGEST_LAYER = 4096
"""Gradients of layers with more numbers are projected to so many (2% error in a variance), which bounds the memory."""


@dataclass(frozen=True)
class Layer:
    """A layer: the parameters that share a path up to its last part."""

    name: str
    parameters: int
    in_cluster: float  # Σ p_n E‖x − g_n‖² of its gradient, unbiased: it may lie below 0 where the truth is near it
    between_cluster: float  # Σ p_n‖g_n − g‖²

    def between_share(self, num_groups: int, group_size: int) -> float:
        """Of the noise of batches of so many cluster-pure groups at random, the part that lies between clusters."""
        return batch_noise(
            self.in_cluster, self.between_cluster, num_groups=num_groups, group_size=group_size
        ).between_share


def layer_variances(
    loss_fn: Callable[[Any, Any], Any],
    params: Any,
    pieces: Iterable[tuple[Any, NDArray[np.integer]]],
    probs: Floats,
    *,
    cluster_sizes: NDArray[np.integer] | None = None,
    seed: int = 0,
) -> list[Layer]:
    """In-cluster and between-cluster variance of each layer's gradient, in the order of the tree.

    Args:
      loss_fn: `loss_fn(params, batch)`, the mean loss over a batch with leaves `[b, ...]`.
      params: where the gradients are taken.
      pieces: batches with leaves `[b, ...]` and their clusters `[b]`, from 0 to N − 1; one shape compiles once.
      probs: `[N]`, the clusters' probabilities.
      cluster_sizes: see `estimate`.
      seed: of the projection of large layers.
    """
    leaves = jax.tree_util.tree_leaves_with_path(params)
    paths = [jax.tree_util.keystr(path[:-1] or path, simple=True, separator="/") for path, _ in leaves]
    layers = {path: [k for k, other in enumerate(paths) if other == path] for path in dict.fromkeys(paths)}
    sizes = {path: sum(math.prod(np.shape(leaves[k][1])) for k in numbers) for path, numbers in layers.items()}
    gradients, number = group_value_and_grad(loss_fn), len(probs)
    project = {
        path: projection(size, LARGEST_LAYER, seed) if size > LARGEST_LAYER else lambda rows: rows
        for path, size in sizes.items()
    }

    @jax.jit
    def sums_of(batch: Any, ids: jax.Array) -> dict[str, tuple[jax.Array, jax.Array]]:
        """For each layer Σx [N, features] and Σ‖x‖² [N] by cluster; ids of −1 do not count."""
        _, grads = gradients(params, jax.tree.map(lambda a: a[:, None], batch))
        flat = [g.reshape(len(ids), -1).astype(jnp.float32) for g in jax.tree.leaves(grads)]
        member = (ids[None] == jnp.arange(number)[:, None]).astype(jnp.float32)
        rows = {path: project[path](jnp.concatenate([flat[k] for k in ks], 1)) for path, ks in layers.items()}
        exact = jax.lax.Precision.HIGHEST
        return {
            path: (jnp.matmul(member, x, precision=exact), member @ jnp.sum(jnp.square(x), 1))
            for path, x in rows.items()
        }

    counts = np.zeros(number, np.intp)
    totals: dict[str, tuple[Floats, Floats]] = {}
    for batch, ids in pieces:
        counts += np.bincount(ids[ids >= 0], minlength=number)
        for path, (first, second) in sums_of(batch, jnp.asarray(ids)).items():
            before = totals.get(path, (0.0, 0.0))
            totals[path] = (before[0] + np.asarray(first, np.float64), before[1] + np.asarray(second, np.float64))
    m = np.maximum(counts, 1).astype(np.float64)
    unseen, shrink = finite_factors(counts, cluster_sizes)

    def layer(path: str) -> Layer:
        total, squares = totals[path]
        means = total / m[:, None]
        spread = (squares / m - np.sum(means**2, axis=1)) * m / np.maximum(m - 1, 1)
        between = probs @ np.sum((means - probs @ means) ** 2, axis=1)
        between -= np.sum(probs * (1 - probs) * spread * unseen / m)  # the scatter of the sample means
        return Layer(path, sizes[path], float((spread * shrink) @ probs), float(between))

    return [layer(path) for path in layers]


def ranked(layers: Sequence[Layer], num_groups: int, group_size: int) -> list[dict[str, Any]]:
    """The layers as JSON takes them, those first that have most of the variance between clusters for their size.

    Each has its `between_share`, its `place` among the given ones, and what the layers up to it hold: `held` of all the
    variance between clusters, in `buffers` of all the parameters.
    """
    order = sorted(range(len(layers)), key=lambda k: -layers[k].between_cluster / layers[k].parameters)
    between = np.cumsum([max(layers[k].between_cluster, 0.0) for k in order])
    sizes = np.cumsum([layers[k].parameters for k in order])
    return [
        {
            **asdict(layers[k]),
            "place": k,
            "between_share": layers[k].between_share(num_groups, group_size),
            "held": float(held / between[-1]) if between[-1] > 0 else 0.0,
            "buffers": float(size / sizes[-1]),
        }
        for k, held, size in zip(order, between, sizes)
    ]
