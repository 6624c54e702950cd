"""Groups from an ordinary mixed batch, for people whose loader they cannot change."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discover.lab.data.errors import DataError, check_at_least


class Groups(NamedTuple):
    """A mixed batch of n examples, arranged as G padded groups of b places."""

    indices: NDArray[np.int32]  # [G, b] places in the mixed batch; padding repeats an example of the batch
    cluster_ids: NDArray[np.int32]  # [G] the cluster of each group; 0 for an empty group
    group_sizes: NDArray[np.int32]  # [G] how many of the b places are examples
    mask: NDArray[np.float32]  # [G, b] 1 for an example, 0 for padding


def group_by_cluster(
    cluster_ids: ArrayLike, num_clusters: int, *, group_size: int | None = None, groups: int | None = None
) -> Groups:
    """Arrange a mixed batch as groups of one cluster each, padded to a fixed shape.

    A cluster with more than b examples gets several groups. The shape [G, b] depends only on n, `num_clusters` and the
    two sizes, never on the ids, so that a jitted step compiles once.

    The loss must leave the padding out, since a group's gradient is the mean over its *examples*:
    `jnp.sum(mask * losses) / jnp.maximum(size, 1)`; and the optimizer is told `group_sizes`.

    Args:
        cluster_ids: int [n], the cluster of each example of the batch.
        num_clusters: N.
        group_size: b; n/N rounded up if absent, at least 1.
        groups: G; if absent, as many as the worst case needs: (n − 1)//b + N, or n if that is less.

    Returns:
        `Groups`, whose arrays are NumPy's; gather the batch with `images[groups.indices]`.

    >>> groups = group_by_cluster([2, 0, 2, 2], num_clusters=3, group_size=2)
    >>> groups.cluster_ids, groups.group_sizes
    (array([0, 2, 2, 0], dtype=int32), array([1, 2, 1, 0], dtype=int32))
    """
    ids = np.asarray(cluster_ids)
    check_at_least("num_clusters", num_clusters, 1)
    if ids.ndim != 1 or len(ids) == 0 or ids.dtype.kind not in "iu":
        raise DataError(f"cluster_ids must be one integer for each example, got {ids.dtype} of shape {ids.shape}")
    if ids.min() < 0 or ids.max() >= num_clusters:
        raise DataError(f"cluster_ids must lie in 0…{num_clusters - 1}, got {ids.min()}…{ids.max()}")
    count = len(ids)
    size = -(-count // num_clusters) if group_size is None else check_at_least("group_size", group_size, 1)
    places = min(count, (count - 1) // size + num_clusters) if groups is None else check_at_least("groups", groups, 1)

    order = np.argsort(ids, kind="stable")
    counts = np.bincount(ids, minlength=num_clusters)
    needed = -(-counts // size)
    if needed.sum() > places:
        raise DataError(f"the batch needs {needed.sum()} groups of {size}, got groups={places}")
    owners = np.repeat(np.arange(num_clusters), needed)
    which = np.arange(len(owners)) - np.repeat(np.cumsum(needed) - needed, needed)  # 0, 1, … within a cluster
    starts = (np.cumsum(counts) - counts)[owners] + which * size
    sizes = np.minimum(size, counts[owners] - which * size)

    group_sizes = np.zeros(places, dtype=np.int32)
    group_sizes[: len(owners)] = sizes
    group_ids = np.zeros(places, dtype=np.int32)
    group_ids[: len(owners)] = owners
    mask = np.arange(size) < group_sizes[:, None]
    indices = np.full((places, size), order[0], dtype=np.int32)
    # Padding repeats the group's first example: a place that exists, with values that are nothing unusual.
    within = np.where(mask[: len(owners)], np.arange(size), 0)
    indices[: len(owners)] = order[starts[:, None] + within]
    return Groups(indices, group_ids, group_sizes, mask.astype(np.float32))
