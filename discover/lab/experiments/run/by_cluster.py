"""Examples to evaluate on, cluster by cluster: which domain, class or client a network does badly on."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np

from discover.lab.data import Dataset, Split, cluster
from discover.lab.experiments.config.config import Config
from discover.lab.training.devices import Devices
from discover.lab.training.loop import ClusterPart

MOST_CLUSTERS = 200


def cluster_parts(config: Config, dataset: Dataset, split: Split, devices: Devices) -> list[ClusterPart]:
    """The parts of a split, each of one cluster and all of one shape, filled up with examples of label −1.

    None where the clusters of unseen examples are not known (k-means, random ones), or there is but one; and on
    several devices, each of which has a part of the examples.
    """
    clusters, kind = config.clusters, config.clusters.entry
    if devices.several or not len(split) or not kind.by_worker or kind.one_per_worker:
        return []
    columns = split.columns
    if clusters.values_of is not None and clusters.values_of not in columns:
        return []
    found = cluster(replace(dataset, train=split), clusters.by, column=clusters.column)
    if not 1 < found.num_clusters <= MOST_CLUSTERS:
        return []
    size, parts = min(int(found.sizes.max()), config.training.eval_batch), []
    for number, name in enumerate(found.names):
        members = found.members(number)
        for first in range(0, len(members), size):
            some = members[first : first + size]
            rows = np.pad(some, (0, size - len(some)))
            labels = np.where(np.arange(size) < len(some), split.labels[rows], -1)
            parts.append(ClusterPart(name, len(some), *jax.device_put((split.images[rows], labels.astype(np.int32)))))
    return parts
