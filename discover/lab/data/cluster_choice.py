"""The clustering of a data set, chosen by name."""

from __future__ import annotations

import os

from numpy.typing import NDArray

from discover.lab.data.clustering import Clustering
from discover.lab.data.dataset import Dataset, Split
from discover.lab.data.errors import DataError, check_choice
from discover.lab.data.noise import LabelNoise

KINDS = ("classes", "superclasses", "augmentations", "random", "kmeans", "column", "file", "none")


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
        by: "classes", "superclasses" (the column of that name), "augmentations", "random", "kmeans", "column", "file",
            or "none" (one cluster).
        num_clusters: for "random" and "kmeans".
        seed: for "random" and "kmeans".
        column: the column to take for "column"; for "kmeans", a column [n, d] to use in place of pixels (an embedding).
        path: the file to read for "file".
        noise: the label noise that batches will have. It matters to "classes" only.
        labels: with label noise, whether "classes" means the "observed" labels (the default: nobody has true ones) or
            the "true" labels.

    Returns:
        A `Clustering` of the training split.

    >>> from discover.lab.data import load
    >>> cluster(load("digits"), "classes").num_clusters
    10
    """
    check_choice("clustering", by, KINDS)
    check_choice("kind of labels", labels, ("observed", "true"))
    split = data.train if isinstance(data, Dataset) else data
    names = data.class_names if isinstance(data, Dataset) else None
    if by == "classes":
        if noise is not None and labels == "observed":
            return Clustering.observed_labels(split.labels, noise, names)
        return Clustering.classes(split.labels, names)
    if by == "superclasses":
        return Clustering.from_column(_column(split, "superclass"), kind="superclasses")
    if by == "augmentations":
        return Clustering.augmentations(len(split))
    if by == "random":
        return Clustering.random(len(split), num_clusters, seed)
    if by == "kmeans":
        features = split.images if column is None else _column(split, column)
        return Clustering.kmeans(features, num_clusters, seed)
    if by == "column":
        if column is None:
            raise DataError(f"clustering by column needs column=…, one of {_listed(split)}")
        return Clustering.from_column(_column(split, column))
    if by == "none":
        return Clustering.single(len(split))
    if path is None:
        raise DataError("clustering from a file needs path=…")
    clustering = Clustering.load(path)
    if clustering.num_examples != len(split):
        have = f"{clustering.num_examples} examples, but the training split has {len(split)}"
        raise DataError(f"the clustering in {path} is for {have}")
    return clustering


def _listed(split: Split) -> str:
    return ", ".join(sorted(split.columns)) or "(this data set has no columns)"


def _column(split: Split, name: str) -> NDArray:
    if name not in split.columns:
        raise DataError(f"there is no column {name!r}: the columns are {_listed(split)}")
    return split.columns[name]
