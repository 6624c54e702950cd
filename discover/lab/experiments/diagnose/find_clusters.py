"""Clusters found, not given: from gradients at a warmed-up model to a clustering that training can use."""

from __future__ import annotations

import numpy as np

from discover.lab.data import Clustering, Dataset
from discover.lab.diagnostics.embeddings import cluster_stream
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.diagnose.gradient_sample import DiagnosisOptions, GradientSample
from discover.lab.experiments.run.build import build_data

__all__ = ["EMBEDDINGS", "find_clusters"]

EMBEDDINGS = ("last-layer", "projected")
"""What stands for an example: its gradient with respect to the last layer, or all of its gradient, projected."""


def find_clusters(
    config: Config,
    num_clusters: int,
    *,
    by: str = "last-layer",
    options: DiagnosisOptions | None = None,
    dataset: Dataset | None = None,
) -> Clustering:
    """Clusters the training examples by their gradients after a short warm-up, in streaming passes.

    Only a few hundred examples and their gradients exist at a time, on the host and on the device. Save the result
    with `clustering.save("found.npz")` and train on it with `clusters.by=file clusters.path=found.npz`.

    Args:
      config: data and model.
      num_clusters: k; clusters that come out empty are dropped.
      by: `last-layer`, the gradient of the last layer; or `projected`, a random projection of all of it.
      options: of the warm-up, and the seed.
      dataset: the data set, if it is there already; else images are read when they are asked for where that can be.
    """
    if by not in EMBEDDINGS:
        raise ValueError(f"unknown embedding {by!r}: choose from {', '.join(EMBEDDINGS)}")
    options = options or DiagnosisOptions()
    dataset = build_data(config.check(), lazy=True) if dataset is None else dataset
    work = GradientSample(config, dataset, options)
    embed = work.embedding(by, work.warm_up())
    everything = np.arange(work.size)
    ids = cluster_stream(lambda: embed(everything), num_clusters, seed=options.seed)
    return Clustering.from_assignments(ids, kind=f"gradients-{by}")
