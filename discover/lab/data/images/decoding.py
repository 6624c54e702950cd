"""Image files to pixels: one, or many in threads, which is enough since Pillow decodes outside of Python's lock."""

from __future__ import annotations

import collections
import contextlib
import functools
import io
import itertools
import math
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from discover.lab.data.errors import ArchiveError, BadImageError, DataError, check_at_least, one_line
from discover.lab.data.limits import RATIO, VARIABLE, raised_by, read_ordinary

File = tuple[str, bytes | Path]  # the name, and the contents or where they are
Decoded = tuple[str, NDArray[np.uint8] | str]  # the name, and the pixels or why there are none

FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP")
"""Pictures made of pixels. Pillow would also run programs (EPS) and read its many rarer formats, by content alone."""
MAX_PIXELS = 89_478_485  # where Pillow itself starts to warn: a small file can claim to be a huge image
MOST_PIXELS = 1_000_000_000
"""Of all pictures together that take few bytes: some ten seconds."""
HEAVY = {"AVIF": 1, "JPEG2000": 4, "WEBP": 1}
"""Formats that are decoded in twice the memory, and how many times the time."""
_TOGETHER = 16  # files that a thread decodes before it asks for more
_BYTES_TOGETHER = 32 << 20  # … or as many as take this many bytes
_WAITING_BYTES = 256 << 20  # decoded, and not yet taken
_PIXELS_AT_ONCE = MAX_PIXELS  # of all threads together, which hold some copies of what they work on


@functools.cache
def readable() -> tuple[str, ...]:
    """Those of :data:`FORMATS` that this Pillow can read."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def is_image(name: str) -> bool:
    """Whether a file is an image that can be read, by its ending; hidden files are not."""
    path = Path(name)
    form = Image.registered_extensions().get(path.suffix.lower())
    # Some formats (PDF) can be written only. MPO has no opener of its own: the JPEG opener reads it.
    return (form in Image.OPEN or form == "MPO") and not path.name.startswith(".")


class _Pixels:
    """How many pixels all threads decode at a time; one picture may always be, whatever its size."""

    def __init__(self, most: int):
        self._most, self._now, self._changed = most, 0, threading.Condition()

    @contextlib.contextmanager
    def share(self, count: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._now == 0 or self._now + count <= self._most)
            self._now += count
        try:
            yield
        finally:
            with self._changed:
                self._now -= count
                self._changed.notify_all()


_AT_ONCE = _Pixels(_PIXELS_AT_ONCE)


class _Allowed:
    """How many pixels some files may be decoded to in all: time, where they are made small and take no memory."""

    def __init__(self):
        self._pixels, self._bytes, self._lock = 0, 0, threading.Lock()
        self._seen: set[tuple[int, int]] = set()

    def of(self, contents: bytes | Path) -> Callable[[int, int], None]:
        """The check of one file, whose bytes count once, however many names and links it has."""
        found = os.stat(contents) if isinstance(contents, Path) else None

        def check(pixels: int, size: int) -> None:
            with self._lock:
                again = found is not None and (found.st_dev, found.st_ino) in self._seen
                if found is not None:
                    self._seen.add((found.st_dev, found.st_ino))
            self._check(pixels, 0 if again else size)

        return check

    def _check(self, pixels: int, size: int) -> None:
        with self._lock:
            self._pixels, self._bytes = self._pixels + pixels, self._bytes + size
            if self._pixels > max(MOST_PIXELS, RATIO * self._bytes) and VARIABLE not in os.environ:
                told = f"{self._pixels:,} pixels of {self._bytes:,} bytes"
                raise ArchiveError(f"it and those before it claim {told}, more than {RATIO} a byte ({raised_by()})")


def decode(
    contents: bytes,
    size: int | None = None,
    channels: int = 3,
    shape: tuple[int, ...] | None = None,
    check: Callable[[int, int], None] = lambda pixels, size: None,
) -> NDArray[np.uint8]:
    """An image file's pixels, uint8 [H, W, C].

    Args:
        contents: the file.
        size: cut the largest central square and resize it to this side; None to keep the image's own size.
        channels: 3 for color, 1 for gray.
        shape: the only one that is wanted: a large image of another size is not decoded, and comes out black.
        check: is told the pixels and the bytes before they are decoded, and may raise an error.
    """
    try:
        with Image.open(io.BytesIO(contents), formats=readable()) as image:
            most = MAX_PIXELS // 2 if image.format in HEAVY else MAX_PIXELS
            if image.width * image.height > most:
                raise BadImageError(f"it claims {image.width}×{image.height} pixels, more than {most}")
            large = image.width * image.height * channels > _BYTES_TOGETHER // _TOGETHER
            if shape is not None and large and sorted(image.size) != sorted(shape[:2]):  # it may be turned
                return np.broadcast_to(np.uint8(0), (image.height, image.width, channels))
            if size is not None:
                image.draft(None, (size, size))  # JPEG: decode at the nearest power-of-two fraction, never below
            # A progressive JPEG goes over all pixels once a scan; ten are usual, and one more takes ten bytes.
            scans = contents.count(b"\xff\xda") // 10 if image.format in ("JPEG", "MPO") else 0
            check(image.width * image.height * max(1, scans, HEAVY.get(image.format or "", 1)), len(contents))
            with _AT_ONCE.share(image.width * image.height):
                ImageOps.exif_transpose(image, in_place=True)  # else it makes a copy, also where nothing is turned
                picture = image.convert("RGB" if channels == 3 else "L")
                if size is not None:
                    picture = ImageOps.fit(picture, (size, size), Image.Resampling.BILINEAR)
                pixels = np.asarray(picture, dtype=np.uint8)
                return pixels if channels == 3 else pixels[..., None]
    except (BadImageError, ArchiveError):
        raise
    except Exception as error:  # Pillow's decoders raise many kinds of error on damaged files
        reason = one_line(error)
        if "cannot identify image file" in reason:
            reason = f"it is none of {', '.join(readable())}"
        raise BadImageError(reason) from error


def decode_many(
    files: Iterable[File], *, size: int | None = None, channels: int = 3, workers: int | None = None
) -> Generator[Decoded, None, None]:
    """Decode image files, several at a time.

    Args:
        files: (name, contents), taken only as fast as they are decoded; or (name, path), read by the threads.
        size: the side to resize to, after a central square cut; None to keep each image's own size.
        channels: 3 for color, 1 for gray.
        workers: how many threads; as many as there are cores to run on, at most 32, if absent.

    Yields:
        (name, uint8 [H, W, C]), or (name, what is wrong with it), in the order of `files`.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = min(cores, 32) if workers is None else check_at_least("workers", workers, 1)
    if channels not in (1, 3):
        raise DataError(f"channels must be 1 or 3, got {channels}")
    if size is not None:
        check_at_least("image_size", size, 1)

    files, pending, shape, waiting = iter(files), collections.deque[Future[list[Decoded]]](), None, 2 * workers
    allowed = _Allowed()
    if size is None:  # then all must be as large as the first, which says how many fit into memory together
        for name, contents in files:
            first = _pixels_or_reason(contents, size, channels, None, allowed)
            yield name, first
            if not isinstance(first, str):
                shape = first.shape
                together = max(first.nbytes, min(_TOGETHER * first.nbytes, _BYTES_TOGETHER))
                waiting = min(waiting, _WAITING_BYTES // together)  # none: only one at a time
                break

    def work(some: list[File]) -> list[Decoded]:
        return [(name, _pixels_or_reason(contents, size, channels, shape, allowed)) for name, contents in some]

    pool = ThreadPoolExecutor(workers)
    try:
        while some := list(_some(files, 0 if shape is None else math.prod(shape))):
            pending.append(pool.submit(work, some))
            if len(pending) > waiting:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()
    finally:  # without waiting: who leaves off half way may be cleared away by the collector in one of these threads
        pool.shutdown(wait=False, cancel_futures=True)


def _some(files: Iterator[File], each: int) -> Iterator[File]:
    """The next files for a thread: a few, and no more than fit into memory, where each takes `each` bytes decoded."""
    taken = 0
    for name, contents in itertools.islice(files, _TOGETHER):
        yield name, contents
        taken += each + (len(contents) if isinstance(contents, bytes) else 0)
        if taken > _BYTES_TOGETHER:
            return


def _pixels_or_reason(
    contents: bytes | Path, size: int | None, channels: int, shape: tuple[int, ...] | None, allowed: _Allowed
) -> NDArray[np.uint8] | str:
    try:
        check = allowed.of(contents)
        raw = read_ordinary(contents) if isinstance(contents, Path) else contents
        return decode(raw, size, channels, shape, check)
    except OSError as error:
        return error.strerror or one_line(error)
    except (BadImageError, ArchiveError) as error:
        return str(error)
