"""Clusters found, not given: from gradients at a warmed-up model to a clustering that training can use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from discover.data import Clustering, Dataset
from discover.diagnostics.embeddings import cluster_stream
from discover.diagnostics.gradients import GradientRows, last_layer
from discover.experiments.build import build_data
from discover.experiments.config import Config
from discover.experiments.diagnose import DiagnosisOptions, _Measurement

__all__ = ["EMBEDDINGS", "find_clusters"]

EMBEDDINGS = ("last-layer", "projected")


def find_clusters(
    config: Config,
    num_clusters: int,
    *,
    by: str = "last-layer",
    options: DiagnosisOptions | None = None,
    dataset: Dataset | None = None,
) -> Clustering:
    """Clusters the training examples by their gradients after a short warm-up, in streaming passes.

    Only a few hundred examples' gradients exist at a time. Save the result with `clustering.save("found.npz")` and
    train on it with `clusters.by=file clusters.path=found.npz`.

    Args:
      config: data and model.
      num_clusters: k; clusters that come out empty are dropped.
      by: `last-layer`, the gradient of the last layer; or `projected`, a random projection of all of it.
      options: of the warm-up, and the seed.
      dataset: the data set, if it is loaded already.

    Returns:
      A partition of the training split.

    Raises:
      ValueError: an unknown embedding, or more clusters than examples.
    """
    if by not in EMBEDDINGS:
        raise ValueError(f"unknown embedding {by!r}: choose from {', '.join(EMBEDDINGS)}")
    options = options or DiagnosisOptions()
    dataset = build_data(config) if dataset is None else dataset
    work = _Measurement(config.check(), dataset, options)
    params = work.warm_up()
    if by == "last-layer":
        rows = GradientRows(work.loss, params, features=1024, select=last_layer)
    else:
        rows = GradientRows(work.loss, params, features=256, seed=options.seed + 1)
    everything = np.arange(len(dataset.train))

    def start() -> Iterator[Any]:
        return rows.stream(work._pieces(everything))

    ids = cluster_stream(start, num_clusters, seed=options.seed)
    return Clustering.from_assignments(ids, kind=f"gradients-{by}")
