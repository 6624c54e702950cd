"""Which cluster each group of each batch comes from, at any step, without replaying the steps before it.

A *slot* is the place of one group: slot s = step·G + k. Two things are asked about a slot: which cluster it draws, and
which *visit* of that cluster it is (how many earlier slots drew it). The second decides which examples come next, and
is what makes random access hard: the answer depends on all earlier slots. Each class here has its own way to know it.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discover.lab.data.errors import DataError
from discover.lab.data.randomness import permutations, stream

Slots = tuple[NDArray[np.int64], NDArray[np.int64]]

BLOCK = 4096  # slots that are worked out together
_LEVELS = 17  # halvings from a tree's root to a block
_ROOT = BLOCK << _LEVELS  # 2²⁹ slots: NumPy's hypergeometric takes populations below 10⁹


class _InBlocks:
    """Works out `BLOCK` slots at a time, and remembers the latest few blocks."""

    def __init__(self):
        self._cached = functools.lru_cache(maxsize=4)(self._block)

    def slots(self, start: int, stop: int) -> Slots:
        """The cluster ids and the visit numbers of slots start…stop−1, int64 each."""
        blocks = range(start // BLOCK, (stop - 1) // BLOCK + 1)
        ids, visits = map(np.concatenate, zip(*map(self._cached, blocks)))
        cut = slice(start - blocks[0] * BLOCK, stop - blocks[0] * BLOCK)
        return ids[cut], visits[cut]

    def _block(self, index: int) -> Slots:
        raise NotImplementedError


class RandomOrder(_InBlocks):
    """Every slot draws its cluster independently, cluster n with probability p_n: the paper's batches.

    The draws are made from the coarse to the fine. The number of draws of each cluster in 2²⁹ slots is multinomial;
    given those, the numbers in the first half are multivariate hypergeometric; and so on down to a block, whose draws
    are a uniform permutation of what its numbers say. This is exactly the law of independent draws, and the visits
    before any block are sums along one path of the tree: O(N log T) work for step T instead of T.

    The multinomial and hypergeometric numbers come from NumPy's `Generator`, whose algorithms NumPy may in principle
    change in a later version; a test holds their values fast.
    """

    def __init__(self, probs: Sequence[float], seed: int):
        super().__init__()
        self.probs = np.asarray(probs, dtype=np.float64)
        self.seed = seed
        self._counts = functools.lru_cache(maxsize=4 * _LEVELS)(self._count)  # neighbours share most of their path

    def _root(self, tree: int) -> NDArray[np.int64]:
        """The draws of each cluster in a whole tree."""
        bits = np.random.Generator(stream(self.seed, "schedule-root", tree))
        return bits.multinomial(_ROOT, self.probs).astype(np.int64)

    def _count(self, depth: int, node: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The draws of each cluster in a node of a tree, and in everything before it."""
        if depth == 0:
            nothing = np.zeros(len(self.probs), dtype=np.int64)
            return self._root(node), sum((self._root(tree) for tree in range(node)), nothing)
        counts, before = self._counts(depth - 1, node // 2)
        bits = np.random.Generator(stream(self.seed, "schedule-split", depth, node // 2))
        left = bits.multivariate_hypergeometric(counts, BLOCK << (_LEVELS - depth), method="marginals")
        return (counts - left, before + left) if node % 2 else (left, before)

    def _block(self, index: int) -> Slots:
        counts, before = self._counts(_LEVELS, index)
        order = permutations(stream(self.seed, "schedule-block", index), 1, BLOCK)[0]
        ids = np.empty(BLOCK, dtype=np.int64)
        ids[order] = np.repeat(np.arange(len(counts)), counts)
        return ids, before[ids] + _ranks(ids)


class BalancedOrder(_InBlocks):
    """Every cluster as near to its share of the slots as can be, after every number of slots.

    The clusters are the leaves of a Huffman tree of their probabilities. At a node that has been reached s times, the
    left child, with share q, has been reached ⌊s·q + ½⌋ times. So an inner node adds at most ½ to the error, and passes
    on its own only in proportion to the child's share. Along a Huffman path weights grow at least like the Fibonacci
    numbers, hence for every cluster and every number S of slots

        |visits(S) − p_n·S| ≤ ½·Σ 1/F_k < 1.68        (`BalancedOrder.BOUND`; p_n rounded to multiples of 2⁻³⁰)

    All of it is integer arithmetic, and any slot is reached directly. The seed shuffles the tree, not the shares.
    """

    BOUND = 1.68

    def __init__(self, probs: Sequence[float], seed: int):
        super().__init__()
        weights = np.maximum(1, np.rint(np.asarray(probs, dtype=np.float64) * 2**30)).astype(np.int64)
        ties = permutations(stream(seed, "balanced"), 2, 2 * len(weights))
        heap = [(int(w), int(ties[0, n]), n) for n, w in enumerate(weights)]
        heapq.heapify(heap)
        # node → (left child, right child, left weight, both weights); clusters are the nodes 0…N−1.
        self._inner: dict[int, tuple[int, int, int, int]] = {}
        node = len(weights)
        while len(heap) > 1:
            first, second = heapq.heappop(heap), heapq.heappop(heap)
            if ties[1, node] % 2:
                first, second = second, first
            self._inner[node] = (first[2], second[2], first[0], first[0] + second[0])
            heapq.heappush(heap, (first[0] + second[0], int(ties[0, node]), node))
            node += 1
        self._top = heap[0][2]

    def _block(self, index: int) -> Slots:
        ids = np.empty(BLOCK, dtype=np.int64)
        visits = np.empty(BLOCK, dtype=np.int64)
        work = [(self._top, np.arange(BLOCK), np.arange(BLOCK, dtype=np.int64) + index * BLOCK)]
        while work:
            node, places, reached = work.pop()
            if node not in self._inner:
                ids[places], visits[places] = node, reached
                continue
            left, right, weight, total = self._inner[node]
            lefts = _share(reached, weight, total)
            goes_left = _share(reached + 1, weight, total) > lefts
            for child, chosen, counts in ((left, goes_left, lefts), (right, ~goes_left, reached - lefts)):
                if chosen.any():
                    work.append((child, places[chosen], counts[chosen]))
        return ids, visits


class GivenOrder:
    """A fixed list of clusters, over and over: group k of every batch, or of every batch of a cycle, has its cluster.

    Args:
        cluster_ids: int [G], or [T, G] for a cycle of T batches.
    """

    def __init__(self, cluster_ids: ArrayLike):
        self._ids = np.asarray(cluster_ids, dtype=np.int64).reshape(-1)
        self._ranks = _ranks(self._ids)
        self._counts = np.bincount(self._ids)

    def slots(self, start: int, stop: int) -> Slots:
        """The cluster ids and the visit numbers of slots start…stop−1, int64 each."""
        cycle, place = np.divmod(np.arange(start, stop, dtype=np.int64), len(self._ids))
        ids = self._ids[place]
        return ids, cycle * self._counts[ids] + self._ranks[place]


def check_given(cluster_ids: ArrayLike | None, groups: int, num_clusters: int) -> NDArray[np.int64]:
    """The clusters of composition "given", checked: int [G] or [T, G], each in 0…N−1."""
    if cluster_ids is None:
        raise DataError(f"composition 'given' needs given=…, {groups} cluster ids, one for each group")
    ids = np.asarray(cluster_ids)
    if ids.ndim not in (1, 2) or ids.size == 0 or ids.shape[-1] != groups or ids.dtype.kind not in "iu":
        raise DataError(f"given must be integers of shape [{groups}] or [T, {groups}], got {ids.dtype} {ids.shape}")
    if ids.min() < 0 or ids.max() >= num_clusters:
        raise DataError(f"given cluster ids must lie in 0…{num_clusters - 1}, got {ids.min()}…{ids.max()}")
    never = np.setdiff1d(np.arange(num_clusters), ids)
    if len(never):
        raise DataError(f"given must name every cluster at least once in its cycle, got none of cluster {never[0]}")
    return ids.astype(np.int64)


def _share(reached: NDArray[np.int64], weight: int, total: int) -> NDArray[np.int64]:
    """⌊reached·weight/total + ½⌋ without overflow: whole cycles apart, since they come out even."""
    cycles, rest = np.divmod(reached, total)
    return cycles * weight + (2 * rest * weight + total) // (2 * total)


def _ranks(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each entry, the number of earlier entries that equal it."""
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    starts = np.searchsorted(ordered, ordered, side="left")
    ranks = np.empty(len(ids), dtype=np.int64)
    ranks[order] = np.arange(len(ids)) - starts
    return ranks
