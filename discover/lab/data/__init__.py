"""Clustered data: sources, clusterings, batches of cluster-pure groups, label noise, augmentation."""

from discover.lab.data.batches.plan import Batch, BatchPlan
from discover.lab.data.batches.regroup import Groups, group_by_cluster
from discover.lab.data.batches.streaming import StreamedBatch, stream_batches
from discover.lab.data.cluster_choice import cluster
from discover.lab.data.clustering import Clustering
from discover.lab.data.dataset import Dataset, Split, stratified_split
from discover.lab.data.errors import ArchiveError, BadImageError, DataError, DatasetNotFoundError
from discover.lab.data.images.augment import Augmentation, augmentation, scale_pixels
from discover.lab.data.images.rows import Rows
from discover.lab.data.noise import LabelNoise
from discover.lab.data.sources.folders import ImageFiles, list_images
from discover.lab.data.sources.table import load

__all__ = [
    "ArchiveError",
    "Augmentation",
    "BadImageError",
    "Batch",
    "BatchPlan",
    "Clustering",
    "DataError",
    "Dataset",
    "DatasetNotFoundError",
    "Groups",
    "ImageFiles",
    "LabelNoise",
    "Rows",
    "Split",
    "StreamedBatch",
    "augmentation",
    "cluster",
    "group_by_cluster",
    "list_images",
    "load",
    "scale_pixels",
    "stratified_split",
    "stream_batches",
]
