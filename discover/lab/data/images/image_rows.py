"""Image files as rows of a data set: each is opened when it is asked for, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from discover.lab.data.errors import BadImageError, DataError
from discover.lab.data.images.cache import content_key, read_cache, write_cache
from discover.lab.data.images.decoding import decode_many

_VERSION = 1  # of the cache's contents


class FileReader:
    """Image files, decoded when they are asked for.

    Args:
        paths: where they are.
        image_size: cut the largest central square out of each image and resize it to this side. None if all images have
            one size already, which is then read from the first file.
        channels: 3 for color, 1 for gray.
        workers: how many processes decode; as many as there are cores if absent.
        cache_dir: where decoded images are kept, under a digest of the contents of the files that were read; None:
            nowhere.
    """

    def __init__(
        self,
        paths: tuple[str, ...],
        image_size: int | None,
        channels: int,
        *,
        workers: int | None = None,
        cache_dir: Path | None = None,
    ):
        self.paths, self.image_size, self.channels, self.workers = paths, image_size, channels, workers
        self.cache_dir, self.dtype = cache_dir, np.dtype(np.uint8)
        side = image_size
        self.shape = self._decode(np.zeros(1, int)).shape[1:] if side is None else (side, side, channels)

    def read(self, numbers: NDArray[np.integer], *, keep: bool = False) -> NDArray:
        """See `Reader`.

        Raises:
            BadImageError: an image cannot be read.
            DataError: images differ in size, and no size was given.
        """
        if not keep or self.cache_dir is None:
            return self._decode(numbers)
        options = {"version": _VERSION, "image_size": self.image_size, "channels": self.channels, "kind": "rows"}
        key = content_key(options, ((self.paths[n], Path(self.paths[n])) for n in numbers))
        arrays = read_cache(self.cache_dir, key)
        if arrays is None:
            arrays = {"images": self._decode(numbers)}
            write_cache(self.cache_dir, key, arrays)
        return arrays["images"]

    def _decode(self, numbers: NDArray[np.integer]) -> NDArray[np.uint8]:
        images: NDArray[np.uint8] | None = None
        shape = getattr(self, "shape", None)
        decoded = decode_many(
            self._contents(numbers), size=self.image_size, channels=self.channels, workers=self.workers
        )
        for row, (path, image) in enumerate(decoded):
            if isinstance(image, str):
                raise BadImageError(f"{path} cannot be read: {image}")
            shape = image.shape if shape is None else shape
            if image.shape != shape:
                sizes = f"{shape[1]}×{shape[0]} and {image.shape[1]}×{image.shape[0]} ({path})"
                raise DataError(f"images differ in size, {sizes}: give image_size=… to resize them all")
            images = np.empty((len(numbers), *shape), np.uint8) if images is None else images
            images[row] = image
        return np.empty((0, *self.shape), np.uint8) if images is None else images

    def _contents(self, numbers: NDArray[np.integer]) -> Iterator[tuple[str, bytes | str]]:
        for number in numbers:
            path = self.paths[number]
            try:
                yield path, Path(path).read_bytes()
            except OSError as error:
                yield path, error.strerror or str(error) or type(error).__name__
