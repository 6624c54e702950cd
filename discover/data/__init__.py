"""Clustered data: sources, clusterings, batches of cluster-pure groups, label noise, augmentation."""

from discover.data.augment import Augmentation, augmentation, scale_pixels
from discover.data.cluster_choice import cluster
from discover.data.clustering import Clustering
from discover.data.dataset import Dataset, Split, stratified_split
from discover.data.errors import ArchiveError, BadImageError, DataError, DatasetNotFoundError
from discover.data.folders import ImageFiles, list_images
from discover.data.grouping import Groups, group_by_cluster
from discover.data.noise import LabelNoise
from discover.data.rows import Rows
from discover.data.sampling import Batch, BatchPlan
from discover.data.sources import load
from discover.data.streaming import StreamedBatch, stream_batches

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
