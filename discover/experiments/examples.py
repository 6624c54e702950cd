"""Training examples on the host, read a piece at a time: what a diagnosis needs of data that may not fit in memory.

Labels and columns are small and held; images are read by their numbers, from arrays or from files.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from discover.data import BadImageError, DataError, Dataset, ImageFiles, Split, list_images, stratified_split
from discover.data.decode_worker import Unreadable, decode
from discover.experiments.build import build_data
from discover.experiments.config import Config

__all__ = ["Examples", "ExamplesInFiles", "ExamplesInMemory", "open_examples", "shapes_of"]


class Examples(Protocol):
    """The training examples of a data set.

    Attributes:
      name: what it is called in tables.
      num_classes: the number of classes.
      example_shape: (H, W, C) or (d,).
      labels: int32 [n].
      columns: further arrays [n, …] by name.
    """

    @property
    def name(self) -> str: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def example_shape(self) -> tuple[int, ...]: ...
    @property
    def labels(self) -> NDArray[np.int32]: ...
    @property
    def columns(self) -> Mapping[str, NDArray]: ...

    def read(self, indices: NDArray[np.integer]) -> NDArray:
        """The images (or features) of some examples, in that order."""
        ...


class ExamplesInMemory:
    """The training split of a `Dataset`; its arrays may be memory maps, of which only what is read is loaded."""

    def __init__(self, dataset: Dataset):
        self.name, self.num_classes, self.example_shape = dataset.name, dataset.num_classes, dataset.example_shape
        self.labels, self.columns = dataset.train.labels, dataset.train.columns
        self._images = dataset.train.images

    def read(self, indices: NDArray[np.integer]) -> NDArray:
        return self._images[indices]


@dataclass
class ExamplesInFiles:
    """Image files in class folders, decoded when they are asked for.

    Args:
      name: what it is called in tables.
      files: the training images.
      image_size: the side that images are cut and resized to; None if all have one size already.
      channels: 3 for color, 1 for gray.

    Raises:
      BadImageError: an image cannot be read.
      DataError: images differ in size, and no size was given.
    """

    name: str
    files: ImageFiles
    image_size: int | None = None
    channels: int = 3
    columns: Mapping[str, NDArray] = field(default_factory=dict)

    def __post_init__(self):
        self.num_classes, self.labels = len(self.files.class_names), self.files.labels
        self.example_shape: tuple[int, ...] = self._one(0).shape

    def read(self, indices: NDArray[np.integer]) -> NDArray:
        with ThreadPoolExecutor(8) as pool:  # Pillow decodes outside of Python's lock
            images = list(pool.map(self._one, np.asarray(indices).tolist()))
        for index, image in zip(indices, images):
            if image.shape != self.example_shape:
                sizes = f"{self.example_shape[:2]} and {image.shape[:2]} ({self.files.paths[index]})"
                raise DataError(f"images differ in size, {sizes}: give data.size=… to resize them all")
        return np.stack(images)

    def _one(self, index: int) -> NDArray[np.uint8]:
        path = self.files.paths[index]
        try:
            return decode(Path(path).read_bytes(), self.image_size, self.channels)
        except (Unreadable, OSError) as error:
            raise BadImageError(f"{path} cannot be read: {error}") from error


def open_examples(config: Config) -> Examples:
    """The training examples that a configuration trains on: files are only listed, everything else is loaded.

    The examples and their order are those of `build_data`, so that clusters found here fit the training.
    """
    path = config.data.path
    if config.data.source != "folder" or path is None or not Path(path).is_dir():
        return ExamplesInMemory(build_data(config))
    parts = list_images(path)
    files = parts["train"]
    if "test" not in parts:
        files = _some(files, stratified_split(files.labels, 0.2, 0)[0])
    if config.data.validation > 0 and "validation" not in parts:
        files = _some(files, stratified_split(files.labels, config.data.validation, config.data.split_seed)[0])
    return ExamplesInFiles(Path(path).name, files, config.data.size)


def _some(files: ImageFiles, indices: NDArray[np.integer]) -> ImageFiles:
    return ImageFiles(tuple(files.paths[i] for i in indices), files.labels[indices], files.class_names)


def shapes_of(examples: Examples) -> Dataset:
    """A data set of one empty example: all that networks and augmentation need to know are shapes and classes."""
    dtype = np.uint8 if len(examples.example_shape) == 3 else np.float32
    one = Split(np.zeros((1, *examples.example_shape), dtype), np.zeros(1, np.int32))
    return Dataset(examples.name, one, one, examples.num_classes)
