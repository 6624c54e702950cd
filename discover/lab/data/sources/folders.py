"""Class folders of images, `train/<class>/*` as in ImageNet, as a folder or in a tar."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from discover.lab.data.dataset import Dataset, Split, stratified_split
from discover.lab.data.errors import BadImageError, DataError, DatasetNotFoundError, check_choice
from discover.lab.data.images.cache import content_key, default_cache_dir, read_cache, write_cache
from discover.lab.data.images.decoding import decode_many
from discover.lab.data.images.image_rows import FileReader
from discover.lab.data.images.rows import Rows
from discover.lab.data.sources.archives import Limits, is_tar, read_tar

PARTS = {"train": "train", "test": "test", "val": "validation", "valid": "validation", "validation": "validation"}
MAX_BYTES = 64 << 30
_VERSION = 1  # of the cache's contents


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """The image files of one part of a data set, not yet read.

    Attributes:
        paths: where they are.
        labels: int32 [n].
        class_names: the name of each class.
    """

    paths: tuple[str, ...]
    labels: NDArray[np.int32]
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)


def list_images(path: str | os.PathLike[str]) -> dict[str, ImageFiles]:
    """The image files of a folder of class folders, by part: "train", and where there are, "test" and "validation".

    Without a folder `train`, the class folders themselves are the part "train". Classes are in alphabetical order.

    Raises:
        DatasetNotFoundError: if there are no images in class folders.
    """
    root = Path(path)
    placed = _place(name for name, _ in _walk(root))
    names, parts = _arrange(placed, root)
    return {
        part: ImageFiles(tuple(str(root / name) for name in files), _labels(files, placed, names), names)
        for part, files in parts.items()
    }


def load_folder(
    path: str | os.PathLike[str],
    *,
    image_size: int | None = None,
    channels: int = 3,
    on_bad_image: str = "error",
    workers: int | None = None,
    progress: bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache: bool = True,
    test_fraction: float = 0.2,
    seed: int = 0,
    max_bytes: int = MAX_BYTES,
    limits: Limits | None = None,
    lazy: bool = False,
) -> Dataset:
    """A data set from class folders of images, decoded into memory.

    `train/<class>/*` is the training split and `test/<class>/*` the test split. With both `test` and `val`, `val` is
    the validation split; alone it is the test split, as in ImageNet. With neither, a stratified share is held out.

    Args:
        path: a folder, or a tar of one (`.tar`, `.tar.gz`, `.tar.xz`), which is read without being unpacked.
        image_size: cut the largest central square out of each image and resize it to this side. None if all images have
            one size already.
        channels: 3 for color, 1 for gray.
        on_bad_image: "error" to stop at an image that cannot be read, "skip" to leave it out, with a warning that says
            how many and which.
        workers: how many processes decode; as many as there are cores if absent.
        progress: whether to show a progress bar; only on a terminal if absent.
        cache_dir: where decoded images are kept (`default_cache_dir` if absent), under a digest of the files' contents.
        cache: whether they are kept at all.
        test_fraction: the share to hold out where there is no test split.
        seed: of what is held out.
        max_bytes: the most memory that decoded images may take; beyond it, stream them (`discover.lab.data.batches.streaming`).
        limits: what a tar may unpack to.
        lazy: only list the files of a folder, and decode an image when it is asked for (`Rows`): for
            a host that needs some of them only. A tar is read whole. Not with on_bad_image="skip", which must open all.

    Raises:
        DatasetNotFoundError: if there are no images in class folders.
        BadImageError: if an image cannot be read, and names it.
        ArchiveError: if a tar is damaged, or holds what it must not.
    """
    check_choice("on_bad_image", on_bad_image, ("error", "skip"))
    path = Path(path)
    if not path.exists():
        raise DatasetNotFoundError(f"there is no {path}: looked for class folders (train/<class>/*) or a tar of them")
    if lazy and path.is_dir():
        if on_bad_image == "skip":
            raise DataError("on_bad_image='skip' must open all images; with lazy=True give 'error'")
        kept_in = Path(cache_dir) if cache_dir is not None else default_cache_dir()
        return _listed(path, image_size, channels, workers, kept_in if cache else None, test_fraction, seed)
    options = {"version": _VERSION, "image_size": image_size, "channels": channels}
    folder = Path(cache_dir) if cache_dir is not None else default_cache_dir()
    key = content_key(options, [(path.name, path)] if path.is_file() else _walk(path)) if cache else ""
    arrays = read_cache(folder, key) if cache else None
    if arrays is None:
        files = _tar_files(path, limits) if path.is_file() else _folder_files(path)
        total = None if path.is_file() else sum(1 for _ in _walk(path))
        arrays = _decode(files, total, path, image_size, channels, on_bad_image, workers, progress, max_bytes)
        if cache:
            write_cache(folder, key, arrays)
    return _assemble(arrays, path, on_bad_image, test_fraction, seed)


# -- finding ----------------------------------------------------------------------------------------------------------


def _is_image(name: str) -> bool:
    from PIL import Image

    path = PurePosixPath(name)
    form = Image.registered_extensions().get(path.suffix.lower())
    # Some formats (PDF) can be written only. MPO has no opener of its own: the JPEG opener reads it.
    return (form in Image.OPEN or form == "MPO") and not path.name.startswith(".")


def _walk(root: Path) -> Iterator[tuple[str, Path]]:
    """The image files under a folder, in order: (name relative to it with "/", path).

    Links are followed, except to a folder that holds the link: it would show the same images again and again.
    """

    def refuse(error: OSError) -> None:  # a class that is left out would shift the labels of those after it
        raise DataError(f"folder {error.filename} cannot be read: {error.strerror or error}") from None

    found = []
    above: dict[str, tuple[str, ...]] = {os.fspath(root): (os.path.realpath(root),)}  # the real folders on the way
    for folder, subfolders, files in os.walk(root, onerror=refuse, followlinks=True):
        here, led = Path(folder), above.pop(folder)
        for name in list(subfolders):
            inner = os.path.join(folder, name)
            real = os.path.realpath(inner)
            if any(Path(outer).is_relative_to(real) for outer in led):
                subfolders.remove(name)
            else:
                above[inner] = (*led, real)
        found += [((here / file).relative_to(root).as_posix(), here / file) for file in files if _is_image(file)]
    return iter(sorted(found))


def _folder_files(root: Path) -> Iterator[tuple[str, bytes | str]]:
    """The image files: (name, contents), or (name, why they cannot be read), which is one bad image among others."""
    for name, path in _walk(root):
        try:
            contents = path.read_bytes()
        except OSError as error:
            contents = error.strerror or str(error) or type(error).__name__
        yield name, contents


def _tar_files(path: Path, limits: Limits | None) -> Iterator[tuple[str, bytes | str]]:
    if not is_tar(path):
        raise DataError(f"{path} is neither a folder nor a tar (.tar, .tar.gz, .tar.xz)")
    return ((name, contents) for name, contents in read_tar(path, limits) if _is_image(name))


def _place(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Part and class of each file that lies in a class folder: {name: (part, class)}."""
    split = {name: PurePosixPath(name).parts for name in names}
    # A tar often holds one folder that holds everything. Go down while all have one first folder, which is no part.
    depth = 0
    while any(len(parts) >= depth + 3 for parts in split.values()):
        firsts = {parts[depth] for parts in split.values() if len(parts) >= depth + 2}
        if len(firsts) != 1 or firsts & set(PARTS):
            break
        depth += 1
    parted = any(parts[depth] == "train" and len(parts) >= depth + 3 for parts in split.values() if len(parts) > depth)
    placed = {}
    for name, parts in split.items():
        rest = parts[depth:]
        if parted and len(rest) >= 3 and rest[0] in PARTS:
            placed[name] = (PARTS[rest[0]], rest[1])
        elif not parted and len(rest) >= 2:
            placed[name] = ("train", rest[0])
    return placed


def _arrange(placed: dict[str, tuple[str, str]], where: Path) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """The class names, and the files of each part in order."""
    parts: dict[str, list[str]] = {}
    for name in sorted(placed):
        parts.setdefault(placed[name][0], []).append(name)
    if not parts.get("train"):
        raise DatasetNotFoundError(f"{where} has no images in class folders: looked for train/<class>/* and <class>/*")
    if "test" not in parts and "validation" in parts:
        parts["test"] = parts.pop("validation")
    names = tuple(sorted({placed[name][1] for name in parts["train"]}))
    for part, files in parts.items():
        strange = sorted({placed[name][1] for name in files} - set(names))
        if strange:
            raise DataError(f"{where} has class {strange[0]!r} in its {part} part, but not in its training part")
    return names, parts


def _labels(files: list[str], placed: dict[str, tuple[str, str]], names: tuple[str, ...]) -> NDArray[np.int32]:
    ids = {name: k for k, name in enumerate(names)}
    return np.array([ids[placed[file][1]] for file in files], dtype=np.int32)


# -- decoding ---------------------------------------------------------------------------------------------------------


def _decode(
    files: Iterator[tuple[str, bytes | str]],
    total: int | None,
    where: Path,
    image_size: int | None,
    channels: int,
    on_bad_image: str,
    workers: int | None,
    progress: bool | None,
    max_bytes: int,
) -> dict[str, NDArray]:
    """All images, as arrays to keep: pixels [n, H, W, C], names [n], and the names of and reasons for the
    unreadable."""
    names: list[str] = []
    images: list[NDArray[np.uint8]] = []
    bad: list[str] = []
    reasons: list[str] = []
    held = 0
    decoded = decode_many(files, size=image_size, channels=channels, workers=workers)
    for name, result in _shown(decoded, total, where, progress):
        if isinstance(result, str):
            if on_bad_image == "error":
                raise BadImageError(f"{name} in {where} cannot be read: {result} (on_bad_image='skip' leaves such out)")
            bad.append(name)
            reasons.append(result)
            continue
        if images and result.shape != images[0].shape:
            sizes = f"{_size(images[0])} ({names[0]}) and {_size(result)} ({name})"
            raise DataError(f"images in {where} differ in size, {sizes}: give image_size=… to resize them all")
        held += result.nbytes
        if held > max_bytes:
            raise DataError(f"images in {where} take more than {max_bytes} bytes: stream them, or raise max_bytes")
        names.append(name)
        images.append(result)
    if not images:
        raise DatasetNotFoundError(f"{where} has no readable images: looked for train/<class>/* and <class>/*")
    pixels = np.empty((len(images), *images[0].shape), dtype=np.uint8)
    for k, image in enumerate(images):
        pixels[k] = image
    return {"images": pixels, "names": np.array(names), "bad": np.array(bad, "U"), "reasons": np.array(reasons, "U")}


def _size(image: NDArray[np.uint8]) -> str:
    return f"{image.shape[1]}×{image.shape[0]}"


def _shown(decoded: Iterator, total: int | None, where: Path, progress: bool | None) -> Iterator:
    """The same, with a progress bar on standard error where one is wanted."""
    if not (sys.stderr.isatty() if progress is None else progress):
        yield from decoded
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("decoding {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(where.name, total=total)
        count = 0
        for count, item in enumerate(decoded, 1):
            yield item
            if count % 64 == 0:
                bar.update(task, completed=count)
        bar.update(task, completed=count, total=count)


def _listed(
    path: Path,
    image_size: int | None,
    channels: int,
    workers: int | None,
    cache_dir: Path | None,
    test_fraction: float,
    seed: int,
) -> Dataset:
    """The data set whose images are read when they are asked for: the examples and their order are `_assemble`'s."""
    listed, splits = list_images(path), {}
    for part, files in listed.items():
        reader = FileReader(files.paths, image_size, channels, workers=workers, cache_dir=cache_dir)
        splits[part] = Split(Rows(reader, np.arange(len(files))), files.labels)
    return _with_test(path.name, splits, listed["train"].class_names, test_fraction, seed)


def _with_test(name: str, splits: dict[str, Split], names: tuple[str, ...], test_fraction: float, seed: int) -> Dataset:
    """The data set of these parts; without a test part, a stratified share of the training part is held out."""
    if "test" not in splits:
        train, test = stratified_split(splits["train"].labels, test_fraction, seed)
        splits["train"], splits["test"] = splits["train"].subset(train), splits["train"].subset(test)
    return Dataset(name, splits["train"], splits["test"], len(names), names, splits.get("validation"))


def _assemble(arrays: dict[str, NDArray], where: Path, on_bad_image: str, test_fraction: float, seed: int) -> Dataset:
    """The data set from what was decoded, or kept."""
    bad = arrays["bad"].tolist()
    if bad and on_bad_image == "error":
        reason = arrays["reasons"][0]
        raise BadImageError(f"{bad[0]} in {where} cannot be read: {reason} (on_bad_image='skip' leaves such out)")
    if bad:
        some = ", ".join(bad[:5]) + (", …" if len(bad) > 5 else "")
        share = f"{len(bad)} of {len(bad) + len(arrays['names'])}"
        warnings.warn(f"skipped {share} images in {where} that cannot be read: {some}", stacklevel=4)
    rows = {name: k for k, name in enumerate(arrays["names"].tolist())}
    # Bad images count for where things are: a class must not vanish, and shift the labels of those after it.
    placed = _place([*rows, *bad])
    names, listed = _arrange(placed, where)
    parts = {part: [file for file in files if file in rows] for part, files in listed.items()}
    lost = sorted(set(names) - {placed[file][1] for file in parts["train"]})
    if lost:
        raise BadImageError(f"class {lost[0]!r} in {where} has no training image that can be read: mend or remove it")
    splits = {}
    for part, files in parts.items():
        if not files:
            raise BadImageError(f"the {part} part of {where} has no image that can be read: mend or remove it")
        order = np.array([rows[file] for file in files])
        ordered = np.array_equal(order, np.arange(order[0], order[0] + len(order)))
        pixels = arrays["images"][order[0] : order[0] + len(order)] if ordered else arrays["images"][order]
        splits[part] = Split(pixels, _labels(files, placed, names))
    name = where.name
    for suffix in (".tar.gz", ".tar.xz", ".tar.bz2", ".tar", ".tgz", ".txz"):
        name = name.removesuffix(suffix)
    return _with_test(name, splits, names, test_fraction, seed)
