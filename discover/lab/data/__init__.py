"""Clustered data: sources, clusterings, batches of cluster-pure groups, label noise, augmentation."""

from typing import TYPE_CHECKING, Any

from discover.lab.data.batches.mixed_batches import Groups, group_by_cluster
from discover.lab.data.batches.plan import Batch, BatchPlan
from discover.lab.data.clustering import Clustering
from discover.lab.data.clusterings import CLUSTERINGS, cluster
from discover.lab.data.dataset import Dataset, Split, stratified_split
from discover.lab.data.errors import ArchiveError, BadImageError, DataError, DatasetNotFoundError
from discover.lab.data.lazy_examples import Examples, LazyExamples
from discover.lab.data.noise import LabelNoise
from discover.lab.data.sources.table import SOURCES, load

if TYPE_CHECKING:
    from discover.lab.data.images.augment import Augmentation

__all__ = [
    "CLUSTERINGS",
    "SOURCES",
    "ArchiveError",
    "Augmentation",
    "BadImageError",
    "Batch",
    "BatchPlan",
    "Clustering",
    "DataError",
    "Dataset",
    "DatasetNotFoundError",
    "Examples",
    "Groups",
    "LabelNoise",
    "LazyExamples",
    "Split",
    "cluster",
    "group_by_cluster",
    "load",
    "stratified_split",
]


def __getattr__(name: str) -> Any:
    """Augmentation works on the device: only who asks for it waits for jax."""
    if name == "Augmentation":
        from discover.lab.data.images.augment import Augmentation

        return Augmentation
    raise AttributeError(f"module 'discover.lab.data' has no attribute {name!r}")
