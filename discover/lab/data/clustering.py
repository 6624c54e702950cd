"""Clusterings: which examples belong together, with what probability each cluster is drawn, as a file where wanted."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discover.lab.data.errors import ArchiveError, DataError, DatasetNotFoundError, check_at_least, one_line
from discover.lab.data.noise import LabelNoise
from discover.lab.data.randomness import permutations, stream
from discover.lab.data.sources.npz import read_npz
from discover.lab.text import printable

AUGMENTATIONS = ("flip", "mixup", "cutmix")
_FORMAT = "discover-clustering-1"


@dataclass(frozen=True, eq=False)
class Clustering:
    """The clusters of a training split.

    Three shapes cover every kind: a *partition* (each example has one cluster), an *overlapping* clustering (each
    cluster holds every example, as with augmentations), and *observed labels* (the cluster of an example is its label
    as label noise shows it, so it changes from one sight to the next).

    Attributes:
        kind: where it came from ("classes", "random", …).
        num_examples: n, the number of examples that it is about.
        names: the name of each cluster.
        probs: p_n, the probability of each cluster; positive, and their sum is 1.
        assignments: int32 [n], the cluster of each example (the *true* label's for observed labels), or None where
            every cluster holds every example.
        noise: the label noise whose observed labels are the clusters, or None.
        elsewhere: whether the examples of some clusters are with other workers, so that there are none here.
    """

    kind: str
    num_examples: int
    names: tuple[str, ...]
    probs: tuple[float, ...]
    assignments: NDArray[np.int32] | None
    noise: LabelNoise | None = None
    elsewhere: bool = False

    def __post_init__(self):
        check_at_least("num_examples", self.num_examples, 1)
        object.__setattr__(self, "names", tuple(printable(str(name)) for name in self.names))
        if not self.names:
            raise DataError("a clustering needs at least 1 cluster, got 0")
        if self.noise is not None and self.assignments is None:
            raise DataError("clusters of observed labels need the true labels as assignments, got None")
        if self.noise is not None and self.noise.num_classes != len(self.names):
            raise DataError(f"observed labels have {self.noise.num_classes} classes, got {len(self.names)} clusters")
        object.__setattr__(self, "assignments", self._checked_assignments())
        object.__setattr__(self, "probs", self._checked_probs())

    def _checked_assignments(self) -> NDArray[np.int32] | None:
        if self.assignments is None:
            return None
        ids, count = np.array(self.assignments), len(self.names)
        if ids.shape != (self.num_examples,) or not np.issubdtype(ids.dtype, np.integer):
            raise DataError(f"assignments must be {self.num_examples} integers, got {ids.dtype} of shape {ids.shape}")
        if ids.min() < 0 or ids.max() >= count:
            raise DataError(f"cluster ids must lie in 0…{count - 1}, got {ids.min()}…{ids.max()}")
        ids = ids.astype(np.int32)
        empty = np.flatnonzero(np.bincount(ids, minlength=count) == 0)
        if self.noise is None and len(empty) and not self.elsewhere:
            raise DataError(f"cluster {empty[0]} ({self.names[empty[0]]!r}) has no examples")
        ids.setflags(write=False)
        return ids

    def _checked_probs(self) -> tuple[float, ...]:
        probs, count = np.asarray(self.probs, dtype=np.float64), len(self.names)
        if probs.shape != (count,) or not np.all(np.isfinite(probs)) or np.any(probs <= 0):
            raise DataError(f"probs must be {count} positive numbers, one for each cluster, got {self.probs!r:.200}")
        if abs(probs.sum() - 1) > 1e-6:
            raise DataError(f"probs must sum to 1, got a sum of {probs.sum():.6g}")
        if abs(probs.sum() - 1) > 1e-12:  # rounded by whoever wrote them down; else leave them, to the last bit
            probs = probs / probs.sum()
        return tuple(probs.tolist())

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def num_clusters(self) -> int:
        """N, the number of clusters."""
        return len(self.names)

    @property
    def overlapping(self) -> bool:
        """Whether every cluster holds every example."""
        return self.assignments is None

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of examples in each cluster, int [N]; of the true labels where clusters are observed labels."""
        if self.assignments is None:
            return np.full(self.num_clusters, self.num_examples)
        return np.bincount(self.assignments, minlength=self.num_clusters)

    def members(self, cluster: int) -> NDArray[np.int32]:
        """The examples of one cluster, in increasing order; by true label where clusters are observed labels."""
        if not 0 <= cluster < self.num_clusters:
            raise DataError(f"cluster must lie in 0…{self.num_clusters - 1}, got {cluster}")
        if self.assignments is None:
            return np.arange(self.num_examples, dtype=np.int32)
        return np.flatnonzero(self.assignments == cluster).astype(np.int32)

    def among(self, names: Sequence[str]) -> Clustering:
        """The same examples in clusters of which some, or all, have examples with other workers.

        Args:
            names: of all workers' clusters, in the order of their ids; this clustering's own are among them. Only what
                batches are `given` says how probable each of them is.

        >>> Clustering.from_column(["street", "indoor", "street"]).among(["beach", "indoor", "street"]).assignments
        array([2, 1, 2], dtype=int32)
        """
        if self.assignments is None or self.noise is not None:
            raise DataError(f"clusters of {self.kind} cannot be shared out among workers")
        ids = {name: number for number, name in enumerate(names)}
        missing = [name for name in self.names if name not in ids]
        if missing or len(ids) != len(names):
            raise DataError(f"the names of all workers' clusters must differ and hold {self.names}, got {list(names)}")
        assignments = np.array([ids[name] for name in self.names])[self.assignments]
        probs = (1 / len(names),) * len(names)
        return Clustering(self.kind, self.num_examples, tuple(names), probs, assignments, elsewhere=True)

    def __repr__(self) -> str:
        return f"Clustering({self.kind!r}, {self.num_clusters} clusters of {self.num_examples} examples)"

    # -- ways to make one ---------------------------------------------------------------------------------------------

    @classmethod
    def from_assignments(
        cls,
        ids: ArrayLike,
        names: Sequence[str] | None = None,
        probs: Sequence[float] | None = None,
        kind: str = "given",
    ) -> Clustering:
        """A cluster id 0…N−1 for each example.

        Args:
            ids: int [n]; every id up to the largest must occur.
            names: the clusters' names; "0", "1", … if absent.
            probs: the clusters' probabilities; their share of the examples if absent.
            kind: a word that says where the ids came from.

        >>> Clustering.from_assignments([0, 1, 1, 1]).probs
        (0.25, 0.75)
        """
        ids = np.asarray(ids)
        if ids.ndim != 1 or not len(ids) or not np.issubdtype(ids.dtype, np.integer):
            raise DataError(f"cluster ids must be a list of integers, got {ids.dtype} of shape {ids.shape}")
        if ids.min() < 0:
            raise DataError(f"cluster ids must not be negative, got {ids.min()}")
        if names is None and ids.max() >= len(ids):  # before every cluster up to the largest gets a name
            missing = int(np.setdiff1d(np.arange(len(ids)), ids)[0])
            raise DataError(f"cluster {missing} ({str(missing)!r}) has no examples")
        if names is not None and ids.max() >= len(names):
            raise DataError(f"cluster ids must lie in 0…{len(names) - 1}, got {ids.min()}…{ids.max()}")
        ids = ids.astype(np.int32)
        names = tuple(names) if names is not None else tuple(str(n) for n in range(int(ids.max()) + 1))
        share = np.bincount(ids, minlength=len(names)) / len(ids) if probs is None else probs
        return cls(kind, len(ids), names, tuple(float(p) for p in share), ids)

    @classmethod
    def from_column(cls, values: ArrayLike, kind: str = "column") -> Clustering:
        """One cluster for each distinct value of an integer, boolean or string column, in sorted order.

        >>> Clustering.from_column(["street", "indoor", "street"]).names
        ('indoor', 'street')
        """
        values = np.asarray(values)
        if values.ndim != 1 or values.dtype.kind not in "iubUS":
            shape = f"{values.dtype} of shape {values.shape}"
            raise DataError(f"a column of clusters must be one integer or string per example, got {shape}")
        distinct, ids = np.unique(values, return_inverse=True)
        names = [v.decode(errors="replace") if isinstance(v, bytes) else str(v) for v in distinct.tolist()]
        return cls.from_assignments(ids, names, kind=kind)

    @classmethod
    def classes(cls, labels: ArrayLike, names: Sequence[str] | None = None) -> Clustering:
        """One cluster for each class that occurs, by true label; p_n is its share of the examples."""
        labels = np.asarray(labels)
        clustering = cls.from_column(labels, kind="classes")
        if names is None:
            return clustering
        present = np.unique(labels)
        if present.max() >= len(names):
            raise DataError(f"labels must be below {len(names)}, the number of names, got {present.max()}")
        return replace(clustering, names=tuple(names[int(c)] for c in present))

    @classmethod
    def observed_labels(cls, labels: ArrayLike, noise: LabelNoise, names: Sequence[str] | None = None) -> Clustering:
        """One cluster for each class, by the label as `noise` shows it at each sight.

        p_n is the probability of *observing* class n (`LabelNoise.class_probs`). Without noise this is `classes`.
        """
        labels = np.asarray(labels)
        if noise.probability == 0:
            return cls.classes(labels, names)
        names = tuple(names) if names is not None else tuple(str(c) for c in range(noise.num_classes))
        counts = np.bincount(labels, minlength=noise.num_classes)
        if len(counts) > noise.num_classes:
            raise DataError(f"labels must be below {noise.num_classes}, the noise's classes, got {labels.max()}")
        probs = noise.class_probs(counts / len(labels))
        if np.any(probs <= 0):
            never = int(np.flatnonzero(probs <= 0)[0])
            raise DataError(f"class {never} ({names[never]!r}) can never be observed, so it cannot be a cluster")
        return cls("observed-labels", len(labels), names, tuple(probs.tolist()), labels, noise)

    @classmethod
    def augmentations(cls, num_examples: int) -> Clustering:
        """One cluster each for flip, Mixup and CutMix (see `Augmentation`): each holds every example, with p = ⅓."""
        return cls("augmentations", num_examples, AUGMENTATIONS, (1 / 3,) * 3, None)

    @classmethod
    def random(cls, num_examples: int, num_clusters: int, seed: int = 0) -> Clustering:
        """Examples dealt to clusters uniformly at random, sizes equal to within one."""
        check_at_least("num_clusters", num_clusters, 1)
        if num_clusters > num_examples:
            raise DataError(f"num_clusters must be at most the number of examples, {num_examples}, got {num_clusters}")
        order = permutations(stream(seed, "random-clusters"), 1, num_examples)[0]
        ids = np.empty(num_examples, dtype=np.int32)
        ids[order] = np.arange(num_examples) % num_clusters
        return cls.from_assignments(ids, kind="random")

    @classmethod
    def kmeans(cls, features: ArrayLike, num_clusters: int, seed: int = 0) -> Clustering:
        """k-means (scikit-learn) on features [n, …]: pixels, which are scaled to [0, 1], or an embedding as it is.

        Above 20,000 examples the mini-batch variant is used. Clusters that come out empty are dropped.
        """
        from sklearn.cluster import KMeans, MiniBatchKMeans

        features = np.asarray(features)
        check_at_least("num_clusters", num_clusters, 1)
        if features.ndim < 2 or num_clusters > len(features):
            raise DataError(f"k-means needs [n, d] features with n ≥ {num_clusters} clusters, got {features.shape}")
        flat = features.reshape(len(features), -1).astype(np.float32)
        if features.dtype == np.uint8:
            flat /= 255
        if not np.all(np.isfinite(flat)):
            raise DataError("k-means needs finite features, got NaN or infinity")
        options: Any = {"n_clusters": num_clusters, "random_state": seed % 2**32, "n_init": 3}
        model = KMeans(**options)
        if len(flat) > 20_000:  # on CIFAR-10's size about 6 s of CPU; three starts with twice the batch took 26 s
            model = MiniBatchKMeans(**{**options, "n_init": 1, "batch_size": 2048, "max_iter": 10})
        ids = model.fit_predict(flat)
        return cls.from_assignments(np.unique(ids, return_inverse=True)[1], kind="kmeans")

    @classmethod
    def single(cls, num_examples: int) -> Clustering:
        """All examples in one cluster: what a plain optimizer sees."""
        return cls("none", num_examples, ("all",), (1.0,), np.zeros(num_examples, dtype=np.int32))

    # -- files --------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it to a `.npz` file (no pickles in it); returns the path."""
        path = Path(path)
        if path.suffix != ".npz":
            path = path.with_name(path.name + ".npz")
        noise = asdict(self.noise) if self.noise else None
        head = {"format": _FORMAT, "kind": self.kind, "names": self.names, "noise": noise, "n": self.num_examples}
        ids = self.assignments if self.assignments is not None else np.zeros(0, dtype=np.int32)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            np.savez_compressed(file, head=np.array(json.dumps(head)), probs=np.array(self.probs), assignments=ids)
        return path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Clustering:
        """Read what `save` wrote."""
        try:
            file = read_npz(path)
            head, probs, ids = json.loads(str(file["head"])), file["probs"], file["assignments"]
            if head["format"] != _FORMAT:
                raise ArchiveError(f"{path} is no clustering file: its format is {head['format']!r:.40}")
            noise = LabelNoise(**head["noise"]) if head["noise"] else None
            assignments = ids if len(ids) else None
            return cls(head["kind"], head["n"], tuple(head["names"]), tuple(probs.tolist()), assignments, noise)
        except DatasetNotFoundError as error:
            raise DataError(f"no clustering file at {path}") from error
        except ArchiveError:
            raise
        except Exception as error:  # what is in it may be nested, or of any type
            raise ArchiveError(f"{path} is no readable clustering file: {one_line(error)}") from error
