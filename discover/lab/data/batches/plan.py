"""Batches of groups, each group from one cluster: a plan that any step of can be asked for directly."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discover.lab.data.batches.cluster_order import BalancedOrder, GivenOrder, RandomOrder, check_given
from discover.lab.data.batches.example_order import MemberPasses, ObservedPasses
from discover.lab.data.clustering import Clustering
from discover.lab.data.errors import DataError, check_at_least
from discover.lab.data.noise import LabelNoise
from discover.registry import choose

_ORDERS: dict[str, Callable[[BatchPlan], RandomOrder | BalancedOrder | GivenOrder]] = {
    "random": lambda plan: RandomOrder(plan.clustering.probs, plan.seed),
    "balanced": lambda plan: BalancedOrder(plan.clustering.probs, plan.seed),
    "shuffled": lambda plan: GivenOrder(np.zeros(plan.groups, dtype=np.int64)),
    "given": lambda plan: GivenOrder(np.asarray(plan.given)),
}
"""By composition: which cluster each group draws."""
_MOST = 2**31 - 1  # labels are int32
_AHEAD = 1 << 16  # `batch` works out about this many examples at once


class Batch(NamedTuple):
    """A batch of G groups of b examples (with a leading axis of steps where several are asked for at once)."""

    indices: NDArray[np.int32]  # [G, b] which examples of the training split
    labels: NDArray[np.int32]  # [G, b] their labels, after label noise
    cluster_ids: NDArray[np.int32]  # [G] the cluster of each group
    group_sizes: NDArray[np.int32]  # [G] the number of examples in each group: b, always


class BatchPlan:
    """Every batch of a training run, a pure function of the seed and the step.

    Within a cluster examples are drawn without replacement: pass after pass, each example once a pass, in a new order
    each pass. A group may straddle two passes, and a cluster smaller than a group is passed over several times in one
    group.

    Args:
        labels: the labels of the training split, int [n].
        clustering: its clusters.
        groups: G, the number of groups in a batch.
        group_size: b, the number of examples in a group.
        composition: which clusters a batch is made of:
            "random": each group draws its cluster by p_n, independently, as in the paper;
            "balanced": each cluster as near to its share p_n as can be at every step (`BalancedOrder.BOUND`);
            "shuffled": ordinary batches, every example once an epoch whatever its cluster, for control. The plan then
            has one cluster, so that Discover on it is (quasi-hyperbolic) momentum, exactly;
            "given": group k has cluster given[k] always, for one cluster per device or worker.
        seed: a non-negative integer.
        noise: label noise. Where the clusters are observed labels it is theirs, and need not be given.
        given: for "given": cluster ids, int [G], or [T, G] for a cycle of T batches.

    >>> from discover.lab.data import BatchPlan, cluster, load
    >>> digits = load("digits")
    >>> plan = BatchPlan(digits.train.labels, cluster(digits, "classes"), groups=4, group_size=8)
    >>> batch = plan.batch(1_000_000)
    >>> batch.indices.shape, batch.cluster_ids.shape
    ((4, 8), (4,))
    """

    def __init__(
        self,
        labels: ArrayLike,
        clustering: Clustering,
        *,
        groups: int,
        group_size: int,
        composition: str = "random",
        seed: int = 0,
        noise: LabelNoise | None = None,
        given: ArrayLike | None = None,
    ):
        self.labels = np.asarray(labels)
        self.groups = check_at_least("groups", groups, 1)
        self.group_size = check_at_least("group_size", group_size, 1)
        self.composition = choose("composition", composition, _ORDERS)
        self.seed = check_at_least("seed", seed, 0)
        if self.labels.shape != (clustering.num_examples,):
            have = f"labels of shape {self.labels.shape}"
            raise DataError(f"the clustering is for {clustering.num_examples} examples, got {have}")
        if self.labels.dtype.kind not in "iu":
            raise DataError(f"labels must be integers, got {self.labels.dtype}")
        if self.labels.min() < 0 or self.labels.max() > _MOST:
            raise DataError(f"labels must lie in 0…{_MOST}, got {self.labels.min()}…{self.labels.max()}")
        if clustering.noise is not None:
            if noise is not None and noise != clustering.noise:
                raise DataError(f"the clusters are labels observed under {clustering.noise}, got noise={noise}")
            if clustering.assignments is None or not np.array_equal(self.labels, clustering.assignments):
                raise DataError("clusters of observed labels must be of these labels, got different ones")
            noise = clustering.noise
        if noise is not None and noise.num_classes <= self.labels.max():
            raise DataError(f"labels must be below the noise's {noise.num_classes} classes, got {self.labels.max()}")
        if given is not None and composition != "given":
            raise DataError(f"given=… is for composition 'given', got composition {composition!r}")
        if clustering.elsewhere and composition != "given":
            raise DataError(f"clusters of several workers need composition 'given', got {composition!r}")
        if composition == "shuffled":
            if clustering.overlapping:
                raise DataError("composition 'shuffled' has no clusters, so no augmentation to apply: use 'random'")
            clustering = Clustering.single(clustering.num_examples)
        self.clustering = clustering
        self.noise = noise
        self.given = check_given(given, groups, clustering.num_clusters) if composition == "given" else None
        self.host = (0, 1)
        self._prepare()

    def _prepare(self) -> None:
        """Sets up what is only remembered, never needed: a host's part of the plan starts without it."""
        self._order = _ORDERS[self.composition](self)
        if self.clustering.noise is not None:
            self._passes = ObservedPasses(self.labels, self.clustering.noise, self.seed)
        else:
            self._passes = MemberPasses(self.clustering, self.seed)
        self._ahead: tuple[int, Batch] | None = None
        self._lock = threading.Lock()

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def num_clusters(self) -> int:
        """N, the number of clusters that the optimizer must know: 1 where batches are shuffled."""
        return self.clustering.num_clusters

    @property
    def probs(self) -> tuple[float, ...]:
        """p_n, the share of each cluster in the batches.

        That of the clustering, except for composition "given", where it is what was given.
        """
        if self.given is None:
            return self.clustering.probs
        counts = np.bincount(self.given.reshape(-1), minlength=self.num_clusters)
        return tuple((counts / counts.sum()).tolist())

    @property
    def batch_size(self) -> int:
        """The number of examples in a batch, over all hosts: G·b."""
        return self.groups * self.group_size

    def __repr__(self) -> str:
        shape = f"{self.groups} groups of {self.group_size}, {self.composition!r}, seed={self.seed}"
        part = f", host {self.host[0]} of {self.host[1]}" if self.host[1] > 1 else ""
        return f"BatchPlan({shape}, {self.clustering!r}{part})"

    # -- batches ------------------------------------------------------------------------------------------------------

    def batch(self, step: int) -> Batch:
        """The batch of one step.

        Returns:
            A `Batch` of read-only arrays, [G, b] and [G].
        """
        step = check_at_least("step", step, 0)
        count = max(1, _AHEAD // (self.batch_size // self.host[1]))
        start = step - step % count
        ahead = self._ahead  # one read, so that another thread's write cannot come between
        if ahead is None or ahead[0] != start:
            ahead = (start, self.batches(start, count))
            self._ahead = ahead
        return Batch(*(values[step - start] for values in ahead[1]))

    def batches(self, start: int, count: int) -> Batch:
        """The batches of `count` steps from `start` on, stacked: what `batch` gives, with a leading axis [count].

        Returns:
            A `Batch` of read-only arrays, [count, G, b] and [count, G].
        """
        start, count = check_at_least("start", start, 0), check_at_least("count", count, 1)
        mine = self._own_groups()
        with self._lock:
            ids, visits = self._order.slots(start * self.groups, (start + count) * self.groups)
            ids = ids.reshape(count, self.groups)[:, mine]
            visits = visits.reshape(count, self.groups)[:, mine]
            indices, sights = self._examples(ids.reshape(-1), visits.reshape(-1))
        labels = self.labels[indices]
        if self.noise is not None:
            labels = self.noise.observe(labels, indices, sights)
        shape = (*ids.shape, self.group_size)
        sizes = np.full(ids.shape, self.group_size)
        values = (indices.reshape(shape), labels.reshape(shape), ids, sizes)
        arrays = [np.ascontiguousarray(value, dtype=np.int32) for value in values]
        for array in arrays:
            array.setflags(write=False)
        return Batch(*arrays)

    def _own_groups(self) -> slice:
        """Which groups of a batch are this host's."""
        index, hosts = self.host
        return slice(index * self.groups // hosts, (index + 1) * self.groups // hosts)

    def _examples(self, ids: NDArray, visits: NDArray) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The examples of each group and their sights, [groups, b] both."""
        indices = np.empty((len(ids), self.group_size), dtype=np.int32)
        sights = np.empty((len(ids), self.group_size), dtype=np.int64)
        positions = visits[:, None] * self.group_size + np.arange(self.group_size)
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        cuts = np.flatnonzero(np.diff(ordered)) + 1
        for rows in np.split(order, cuts):
            indices[rows], sights[rows] = self._passes.take(int(ids[rows[0]]), positions[rows])
        return indices, sights

    def examples(self, steps: int) -> NDArray[np.int64]:
        """The examples that the first `steps` batches draw, sorted: all that this host ever needs of the data set.

        >>> from discover.lab.data import cluster, load
        >>> digits = load("digits")
        >>> options = {"groups": 10, "group_size": 8, "composition": "given", "given": range(10)}
        >>> plan = BatchPlan(digits.train.labels, cluster(digits, "classes"), **options)
        >>> len(digits.train), len(plan.for_host(0, 10).examples(1000))    # one of ten hosts: one class
        (1438, 142)
        """
        steps = check_at_least("steps", steps, 0)
        own = self._own_groups()
        possible = np.ones(len(self.labels), dtype=bool)
        if self.given is not None and self.clustering.assignments is not None and self.clustering.noise is None:
            possible = np.isin(self.clustering.assignments, self.given[..., own])
        drawn, limit = np.zeros(len(self.labels), dtype=bool), int(possible.sum())
        count = max(1, _AHEAD // (self.batch_size // self.host[1]))
        for start in range(0, steps, count):
            drawn[self.batches(start, min(count, steps - start)).indices] = True
            if drawn.sum() == limit:
                break
        return np.flatnonzero(drawn)

    # -- several hosts ------------------------------------------------------------------------------------------------

    def for_host(self, process_index: int, process_count: int) -> BatchPlan:
        """The part of this plan that one of several hosts draws: a contiguous share of each batch's groups.

        The hosts' parts are disjoint, and joined in order they are the whole batch.

        Args:
            process_index: which host, 0…process_count−1 (`jax.process_index()`).
            process_count: how many (`jax.process_count()`); must divide G, since every host's share has one shape.
        """
        process_count = check_at_least("process_count", process_count, 1)
        if not 0 <= process_index < process_count:
            raise DataError(f"process_index must lie in 0…{process_count - 1}, got {process_index}")
        if self.groups % process_count:
            raise DataError(f"process_count must divide the {self.groups} groups of a batch, got {process_count}")
        if self.host != (0, 1):
            raise DataError(f"this plan is the part of host {self.host[0]} of {self.host[1]} already")
        part = copy.copy(self)
        part.host = (int(process_index), process_count)
        part._prepare()
        if self.clustering.elsewhere and self.given is not None:
            drawn = np.unique(self.given[..., part._own_groups()])
            missing = drawn[self.clustering.sizes[drawn] == 0]
            if len(missing):
                name = self.clustering.names[missing[0]]
                raise DataError(
                    f"host {process_index} is given cluster {missing[0]} ({name!r}), of which it has no examples"
                )
        return part
