"""What the clusters can be: the table of clusterings, and `cluster`, which reads it.

A clustering is one function of a data set, and one entry below; what it can be told is its signature. Instead of a name
of the table, `module:function` stands for a user's own: `function(dataset)`, which returns a cluster for each training
example (integers or strings), or a `Clustering`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from numpy.typing import NDArray

from discover.lab.data.clustering import AUGMENTATIONS, Clustering
from discover.lab.data.dataset import Dataset, Split
from discover.lab.data.errors import DataError, listed, no_column
from discover.lab.data.noise import LabelNoise
from discover.registry import Made, Table, choose

Data = Dataset | Split


@dataclass(frozen=True)
class ClusteringKind(Made):
    """One clustering of the table.

    Attributes:
        name: as it is typed.
        factory: `module:function`; `function(data, …)`, with those of the keywords of `cluster` that it needs.
        singular: what one of its clusters is called.
        augments: whether the clusters are ways to augment, and hold every example each.
        by_worker: whether workers who each have data of their own find their clusters in it, each by itself.
        one_per_worker: whether the clusters are the workers themselves.
        any_examples: whether any examples with labels have such clusters, made-up ones too.
        one_cluster: whether there is one cluster, whatever the data.
        costly: whether finding the clusters takes so long that it is worth doing once for many runs.
    """

    singular: str = "cluster"
    augments: bool = False
    by_worker: bool = False
    one_per_worker: bool = False
    any_examples: bool = False
    one_cluster: bool = False
    costly: bool = False

    @property
    def needs(self) -> tuple[str, ...]:
        """What must be told to it besides the data."""
        return self.required[1:]


def classes(data: Data, noise: LabelNoise | None = None, labels: str = "observed") -> Clustering:
    choose("kind of labels", labels, ("observed", "true"))
    split, names = _train(data), data.class_names if isinstance(data, Dataset) else None
    if noise is not None and labels == "observed":
        return Clustering.observed_labels(split.labels, noise, names)
    return Clustering.classes(split.labels, names)


def superclasses(data: Data) -> Clustering:
    return Clustering.from_column(_column(data, "superclass"), kind="superclasses")


def augmentations(data: Data) -> Clustering:
    return Clustering.augmentations(len(_train(data)))


def random(data: Data, num_clusters: int = 10, seed: int = 0) -> Clustering:
    return Clustering.random(len(_train(data)), num_clusters, seed)


def kmeans(data: Data, num_clusters: int = 10, seed: int = 0, column: str | None = None) -> Clustering:
    features = _train(data).images if column is None else _column(data, column)
    return Clustering.kmeans(features, num_clusters, seed)


def column(data: Data, column: str) -> Clustering:
    return Clustering.from_column(_column(data, column))


def file(data: Data, path: str | os.PathLike[str]) -> Clustering:
    return Clustering.load(path)


def none(data: Data) -> Clustering:
    return Clustering.single(len(_train(data)))


def workers(data: Data) -> Clustering:
    """This worker's one cluster, named after it."""
    import jax

    return replace(none(data), names=(f"worker {jax.process_index()}",))


def _entry(name: str, singular: str = "cluster", **further: bool) -> ClusteringKind:
    return ClusteringKind(name, f"{__name__}:{name}", singular, **further)


CLUSTERINGS: Table[ClusteringKind] = Table(
    "clustering",
    (
        _entry("classes", "class", by_worker=True, any_examples=True),
        _entry("superclasses", "superclass", by_worker=True),
        _entry("augmentations", "augmentation", augments=True, any_examples=True),
        _entry("random", any_examples=True),
        _entry("kmeans", costly=True),
        _entry("column", by_worker=True),
        _entry("file"),
        _entry("none", any_examples=True, one_cluster=True),
        _entry("workers", by_worker=True, one_per_worker=True),
    ),
    from_path=lambda path: ClusteringKind(path, path),
)
"""Every clustering."""


def cluster(
    data: Dataset | Split,
    by: str = "classes",
    *,
    num_clusters: int = 10,
    seed: int = 0,
    column: str | None = None,
    path: str | os.PathLike[str] | None = None,
    noise: LabelNoise | None = None,
    labels: str = "observed",
) -> Clustering:
    """The clustering of a training split, by name.

    Args:
        data: a dataset (its training split is meant) or a split.
        by: a name of `CLUSTERINGS`, or `module:function` for your own `function(data)`, which may take any of the
            keywords below.
        num_clusters: for "random" and "kmeans".
        seed: for "random" and "kmeans".
        column: the column to take for "column"; for "kmeans", a column [n, d] to use in place of pixels (an embedding).
        path: the file to read for "file".
        noise: the label noise that batches will have. It matters to "classes" only.
        labels: with label noise, whether "classes" means the "observed" labels (the default: nobody has true ones) or
            the "true" labels.

    >>> from discover.lab.data import load
    >>> cluster(load("digits"), "classes").num_clusters
    10
    """
    kind = CLUSTERINGS.find(by)
    given = {"num_clusters": num_clusters, "seed": seed, "column": column, "path": path, "noise": noise}
    options = {name: value for name, value in {**given, "labels": labels}.items() if name in kind.arguments}
    for name in kind.needs:
        if options.get(name) is None:
            there = listed(sorted(_train(data).columns)) or "(this data set has no columns)"
            raise DataError(f"clustering by {by} needs {name}=…{f', one of {there}' if name == 'column' else ''}")
    found = kind.make(data, **options)
    clustering = found if isinstance(found, Clustering) else Clustering.from_column(found, kind=by)
    if clustering.num_examples != len(_train(data)):
        have = f"{clustering.num_examples} examples, but the training split has {len(_train(data))}"
        raise DataError(f"the clustering {by if path is None else f'in {path}'} is for {have}")
    if kind.augments and clustering.names != AUGMENTATIONS:  # what an id means to `Augmentation`
        names = f"{', '.join(AUGMENTATIONS)}, got {', '.join(clustering.names)}"
        raise DataError(f"clusters of augmentations must be {names}")
    return clustering


def _train(data: Data) -> Split:
    return data.train if isinstance(data, Dataset) else data


def _column(data: Data, name: str) -> NDArray:
    if name not in _train(data).columns:
        raise no_column(name, sorted(_train(data).columns))
    return _train(data).columns[name]
