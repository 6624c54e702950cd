"""Which examples of a cluster come next: an endless stream, pass after pass, each example once a pass in a new order.

A stream is addressed by position: position 0 is the first example of the first pass. `take` gives the examples at any
positions, and at which *sight* of the example that is, which is what label noise depends on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from discover.lab.data.clustering import Clustering
from discover.lab.data.noise import LabelNoise
from discover.lab.data.randomness import permutations, stream

_SMALL = 256  # passes over clusters below this size are shuffled several at a time
_CACHE_BYTES = 256 << 20


class MemberPasses:
    """Streams of clusters whose members are fixed.

    Pass k of cluster n is a uniform permutation of its members, a function of (seed, n, k). Where every cluster holds
    every example, a pass of each cluster is a sight of its own: sight = pass·N + n.
    """

    def __init__(self, clustering: Clustering, seed: int):
        self.sizes = clustering.sizes.astype(np.int64)
        self._overlap = clustering.num_clusters if clustering.overlapping else 1
        everyone = np.arange(clustering.num_examples, dtype=np.int32)
        if clustering.assignments is None:
            members = [everyone] * clustering.num_clusters
        else:
            order = np.argsort(clustering.assignments, kind="stable").astype(np.int32)
            members = np.split(order, np.cumsum(self.sizes)[:-1])
        # Chunk c of a cluster: whole passes, at least _SMALL examples, so that a cluster of one example is cheap too.
        self._per_chunk = np.maximum(1, _SMALL // np.maximum(1, self.sizes))
        # A group straddles at most a chunk's end: more than two of a cluster would only cost memory.
        self._chunk = [
            functools.lru_cache(maxsize=2)(functools.partial(_chunk, seed, n, members[n], int(self._per_chunk[n])))
            for n in range(clustering.num_clusters)
        ]

    def take(self, cluster: int, positions: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The examples at `positions` of a cluster's stream, and their sights; both of the shape of `positions`."""
        size = int(self.sizes[cluster])
        length = size * int(self._per_chunk[cluster])
        first, last = int(positions.min()) // length, int(positions.max()) // length
        if first == last:
            examples = self._chunk[cluster](first)[positions - first * length]
        else:
            joined = np.concatenate([self._chunk[cluster](c) for c in range(first, last + 1)])
            examples = joined[positions - first * length]
        sights = positions // size
        return examples, sights if self._overlap == 1 else sights * self._overlap + cluster


def _chunk(seed: int, cluster: int, members: NDArray[np.int32], passes: int, index: int) -> NDArray[np.int32]:
    orders = permutations(stream(seed, "pass", index, cluster), passes, len(members))
    return members[orders.reshape(-1)]


class ObservedPasses:
    """Streams of clusters that are labels as noise shows them.

    Pass k of cluster n holds the examples whose label at their k-th sight is n, in a uniform order. So the clusters'
    k-th passes together hold every example exactly once, and a group's observed labels are all its cluster's.

    The sizes of passes vary, so the start of pass k is a sum over the passes before it. It is worked out once, about 10
    ns for each example and pass, and kept.
    """

    def __init__(self, labels: NDArray[np.int32], noise: LabelNoise, seed: int):
        self._size = len(labels)
        self._observed = functools.partial(noise.observe, np.asarray(labels, dtype=np.int32), np.arange(len(labels)))
        self._starts = np.zeros((1, noise.num_classes), dtype=np.int64)
        most = int(np.clip(_CACHE_BYTES // (4 * len(labels)), 4, 64))
        self._order = functools.lru_cache(maxsize=most)(functools.partial(_observed_pass, seed, self._observed))

    def take(self, cluster: int, positions: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The examples at `positions` of a cluster's stream, and their sights; both of the shape of `positions`."""
        last = int(positions.max())
        while self._starts[-1, cluster] <= last:
            self._extend(1 + (last - int(self._starts[-1, cluster])) // max(1, self._size))
        passes = np.searchsorted(self._starts[:, cluster], positions, side="right") - 1
        examples = np.empty(positions.shape, dtype=np.int32)
        for k in range(int(passes.min()), int(passes.max()) + 1):
            chosen = passes == k
            if not chosen.any():
                continue
            sizes = self._starts[k + 1] - self._starts[k]
            offset = int(sizes[:cluster].sum()) - int(self._starts[k, cluster])
            examples[chosen] = self._order(k)[positions[chosen] + offset]
        return examples, passes

    def _extend(self, count: int) -> None:
        """Work out the sizes of the next `count` passes (at least), and so where the one after them starts."""
        known, clusters = len(self._starts) - 1, self._starts.shape[1]
        sizes = [np.bincount(self._observed(k), minlength=clusters) for k in range(known, known + count)]
        self._starts = np.concatenate([self._starts, self._starts[-1] + np.cumsum(sizes, axis=0)])


def _observed_pass(seed: int, observed: Callable[[int], NDArray[np.int32]], k: int) -> NDArray[np.int32]:
    """All examples of pass k: the first cluster's in random order, then the second's, and so on."""
    labels = observed(k)
    shuffled = permutations(stream(seed, "observed-pass", k), 1, len(labels))[0]
    return shuffled[np.argsort(labels[shuffled], kind="stable")].astype(np.int32)
