"""Class folders of images, `train/<class>/*` as in ImageNet, or with named levels, as a folder or in a tar."""

from __future__ import annotations

import collections
import contextlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from discover.lab.data.dataset import Dataset, Split, stratified_split
from discover.lab.data.errors import BadImageError, DataError, DatasetNotFoundError
from discover.lab.data.images.cache import default_cache_dir, kept
from discover.lab.data.images.decoding import Decoded, decode_many, is_image
from discover.lab.data.lazy_examples import LazyExamples
from discover.lab.data.limits import RATIO, honest_size_of_all, most_bytes, raised_by, text_array
from discover.lab.data.sources.archives import TAR_SUFFIXES, is_tar, read_tar
from discover.lab.data.sources.layout import Place, place_files
from discover.lab.text import printable
from discover.registry import choose

_VERSION = 1  # of the cache's contents


def load_folder(
    path: str | os.PathLike[str],
    *,
    layout: str | None = None,
    label: str | None = None,
    image_size: int | None = None,
    channels: int = 3,
    on_bad_image: str = "error",
    workers: int | None = None,
    cache: bool = True,
    test_fraction: float = 0.2,
    seed: int = 0,
    lazy: bool = False,
) -> Dataset:
    """A data set from class folders of images, decoded into memory.

    `train/<class>/*` is the training split and `test/<class>/*` the test split. With both `test` and `val`, `val` is
    the validation split; alone it is the test split, as in ImageNet. With neither, a stratified share is held out.

    Args:
        path: a folder, or a tar of one (`.tar`, `.tar.gz`, `.tar.xz`), which is read without being unpacked.
        layout: the names of the levels of folders, as in `domain/class`: the level `class` is the label, every other
            one a column to cluster by.
        label: the level that is the label, if it is not called `class`.
        image_size: cut the largest central square out of each image and resize it to this side. None if all images have
            one size already.
        channels: 3 for color, 1 for gray.
        on_bad_image: "error" to stop at an image that cannot be read, "skip" to leave it out, with a warning that says
            how many and which.
        workers: how many threads decode; as many as there are cores if absent.
        cache: whether decoded images are kept (in `default_cache_dir`), under a digest of the files' contents.
        test_fraction: the share to hold out where there is no test split.
        seed: of what is held out.
        lazy: only list the files of a folder, and decode an image when it is asked for (`LazyExamples`): for data
            larger than memory, or a host that needs some of it only. A tar is read whole. Not with on_bad_image="skip",
            which must open all.
    """
    choose("on_bad_image", on_bad_image, ("error", "skip"))
    path = Path(path)
    if not path.exists():
        raise DatasetNotFoundError(f"there is no {path}: looked for class folders (train/<class>/*) or a tar of them")
    if not path.is_dir() and not is_tar(path):
        raise DataError(f"{path} is neither a folder nor a tar (.tar, .tar.gz, .tar.xz)")
    decoding = {"size": image_size, "channels": channels, "workers": workers}
    options = {"version": _VERSION, "image_size": image_size, "channels": channels}
    folder = default_cache_dir() if cache else None
    files = list(walk_images(path)) if path.is_dir() else [(path.name, path)]
    # What is wrong with the layout is said before pictures are decoded for minutes; in a tar, as far as that is known.
    placed = place_files((name for name, _ in files) if path.is_dir() else (), layout, label)
    if lazy and path.is_dir():
        if on_bad_image == "skip":
            raise DataError("on_bad_image='skip' must open all images; with lazy=True give 'error'")
        names, parts = _arrange(placed, path)
        splits = {}
        for part, listed in parts.items():
            images = _lazy_images([path / name for name in listed], path, decoding, options | {"kind": "rows"}, folder)
            splits[part] = Split(images, _labels(listed, placed, names), _columns(listed, placed))
        return _with_test(path.name, splits, names, test_fraction, seed)

    def read() -> dict[str, NDArray]:
        found = files if path.is_dir() else (file for file in read_tar(path) if is_image(file[0]))
        with contextlib.closing(decode_many(found, **decoding)) as decoded:
            shown = _shown(decoded, len(files) if path.is_dir() else None, path)
            return _collect(shown, path, on_bad_image, most_bytes(honest_size_of_all(file for _, file in files)))

    def place(names: Iterable[str]) -> dict[str, Place]:
        return place_files(names, layout, label)

    return _assemble(kept(folder, options, files, read), path, place, on_bad_image, test_fraction, seed)


# -- finding ----------------------------------------------------------------------------------------------------------


def walk_images(root: Path) -> Iterator[tuple[str, Path]]:
    """The image files under a folder, in order: (name relative to it with "/", path).

    Links are followed, except to a folder that holds the link: it would show the same images again and again.
    """

    def refuse(error: OSError) -> None:  # a class that is left out would shift the labels of those after it
        raise DataError(f"folder {error.filename} cannot be read: {error.strerror or error}") from None

    found, visits = [], collections.Counter[str]()
    above: dict[str, tuple[str, ...]] = {os.fspath(root): (os.path.realpath(root),)}  # the real folders on the way
    for folder, subfolders, files in os.walk(root, onerror=refuse, followlinks=True):
        here, led = Path(folder), above.pop(folder)
        for name in list(subfolders):
            inner = os.path.join(folder, name)
            real = os.path.realpath(inner)
            visits[real] += 1
            if visits[real] > RATIO:  # links to folders of links, each of which doubles what there is
                raise DataError(f"folder {inner} is one of more than {RATIO} links to {real}: remove some")
            if any(Path(outer).is_relative_to(real) for outer in led):
                subfolders.remove(name)
            else:
                above[inner] = (*led, real)
        found += [((here / file).relative_to(root).as_posix(), here / file) for file in files if is_image(file)]
    return iter(sorted(found))


def _arrange(placed: dict[str, Place], where: Path) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """The class names, and the files of each part in order."""
    parts: dict[str, list[str]] = {}
    for name in sorted(placed):
        parts.setdefault(placed[name].part, []).append(name)
    if not parts.get("train"):
        raise DatasetNotFoundError(f"{where} has no images in class folders: looked for train/<class>/* and <class>/*")
    if "test" not in parts and "validation" in parts:
        parts["test"] = parts.pop("validation")
    names = tuple(sorted({placed[name].label for name in parts["train"]}))
    for part, files in parts.items():
        strange = sorted({placed[name].label for name in files} - set(names))
        if strange:
            raise DataError(f"{where} has class {strange[0]!r} in its {part} part, but not in its training part")
    return names, parts


def _labels(files: list[str], placed: dict[str, Place], names: tuple[str, ...]) -> NDArray[np.int32]:
    ids = {name: k for k, name in enumerate(names)}
    return np.array([ids[placed[file].label] for file in files], dtype=np.int32)


def _columns(files: list[str], placed: dict[str, Place]) -> dict[str, NDArray]:
    rows = [dict(placed[file].columns) for file in files]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


# -- reading ----------------------------------------------------------------------------------------------------------


def _collect(decoded: Iterable[Decoded], where: Path, on_bad_image: str, max_bytes: int) -> dict[str, NDArray]:
    """All images, as arrays to keep: pixels [n, H, W, C], names [n], the names of and reasons for the unreadable."""
    images: dict[str, NDArray[np.uint8]] = {}
    bad: dict[str, str] = {}
    held = 0
    for name, result in decoded:
        if isinstance(result, str):
            bad[name] = result
            _check_bad(bad, where, on_bad_image)
            continue
        first = next(iter(images), name)
        if images and result.shape != images[first].shape:
            raise _differing(where, f"{_size(images[first])} ({first}) and {_size(result)} ({name})")
        held += result.nbytes
        if held > max_bytes:
            raise DataError(f"images in {where} take more than {max_bytes} bytes: give lazy=True, or {raised_by()}")
        images[name] = result
    if not images:
        raise DatasetNotFoundError(f"{where} has no readable images: looked for train/<class>/* and <class>/*")
    names = list(images)
    together = np.empty((len(names), *images[names[0]].shape), np.uint8)
    for row, name in enumerate(names):
        together[row] = images.pop(name)  # one by one: not all of them twice in memory
    return {
        "images": together,
        "names": text_array(f"the names of the pictures in {where}", names, max_bytes),
        "bad": np.array(list(bad), "U"),
        "reasons": np.array(list(bad.values()), "U"),
    }


def _lazy_images(paths: list[Path], where: Path, decoding: dict, options: dict, folder: Path | None) -> LazyExamples:
    """Images that are decoded when they are asked for; `folder` is where those are kept that are held."""

    def read(numbers: NDArray[np.integer]) -> NDArray[np.uint8]:
        images = np.empty((len(numbers), *shape), np.uint8)
        with contextlib.closing(decode_many(((str(paths[n]), paths[n]) for n in numbers), **decoding)) as decoded:
            for row, (name, image) in enumerate(decoded):
                if isinstance(image, str):
                    raise BadImageError(f"{name} cannot be read: {image}")
                if image.shape != shape:
                    sizes = f"{shape[1]}×{shape[0]} ({paths[0]}) and {_size(image)} ({name})"
                    raise _differing(where, sizes)
                images[row] = image
        return images

    def read_to_hold(numbers: NDArray[np.integer]) -> NDArray[np.uint8]:
        files = ((str(paths[n]), paths[n]) for n in numbers)
        return kept(folder, options, files, lambda: {"images": read(numbers)})["images"]

    if decoding["size"] is not None:
        shape = (decoding["size"], decoding["size"], decoding["channels"])
    else:
        ((name, first),) = decode_many([(str(paths[0]), paths[0])], **decoding)
        if isinstance(first, str):
            raise BadImageError(f"{name} cannot be read: {first}")
        shape = first.shape
    return LazyExamples(read, shape, np.uint8, np.arange(len(paths)), read_to_hold)


def _size(image: NDArray[np.uint8]) -> str:
    return f"{image.shape[1]}×{image.shape[0]}"


def _differing(where: Path, sizes: str) -> DataError:
    return DataError(f"images in {where} differ in size, {sizes}", image_size=64)


def _check_bad(bad: dict[str, str], where: Path, on_bad_image: str) -> None:
    if bad and on_bad_image == "error":
        name, reason = next(iter(bad.items()))
        raise BadImageError(
            f"{name} in {where} cannot be read: {reason}; mend it, or leave such out", on_bad_image="skip"
        )


def _shown(decoded: Iterator[Decoded], total: int | None, where: Path) -> Iterable[Decoded]:
    """The same, with a progress bar on standard error; without a terminal a line now and then."""
    if not sys.stderr.isatty():
        return _told(decoded, total, where)
    from rich.console import Console
    from rich.progress import track

    return track(decoded, f"decoding {printable(where.name)}", total, console=Console(stderr=True))


def _told(decoded: Iterable[Decoded], total: int | None, where: Path) -> Iterator[Decoded]:
    last = time.monotonic()
    for number, one in enumerate(decoded, 1):
        if time.monotonic() - last >= 10:
            last = time.monotonic()
            sys.stderr.write(f"decoding {printable(where.name)}: {number}{f' of {total}' if total else ''} pictures\n")
        yield one


# -- the whole --------------------------------------------------------------------------------------------------------


def _assemble(
    arrays: dict[str, NDArray],
    where: Path,
    place: Callable[[Iterable[str]], dict[str, Place]],
    on_bad_image: str,
    test_fraction: float,
    seed: int,
) -> Dataset:
    """The data set from what was decoded, or kept."""
    bad = dict(zip(arrays["bad"].tolist(), arrays["reasons"].tolist()))
    _check_bad(bad, where, on_bad_image)  # what was kept is no way around the error
    if bad:
        some = ", ".join(list(bad)[:5]) + (", …" if len(bad) > 5 else "")
        share = f"{len(bad)} of {len(bad) + len(arrays['names'])}"
        warnings.warn(printable(f"skipped {share} images in {where} that cannot be read: {some}"), stacklevel=4)
    rows = {name: k for k, name in enumerate(arrays["names"].tolist())}
    # Bad images count for where things are: a class must not vanish, and shift the labels of those after it.
    placed = place([*rows, *bad])
    names, listed = _arrange(placed, where)
    parts = {part: [file for file in files if file in rows] for part, files in listed.items()}
    lost = sorted(set(names) - {placed[file].label for file in parts["train"]})
    if lost:
        raise BadImageError(f"class {lost[0]!r} in {where} has no training image that can be read: mend or remove it")
    splits = {}
    for part, files in parts.items():
        if not files:
            raise BadImageError(f"the {part} part of {where} has no image that can be read: mend or remove it")
        order = np.array([rows[file] for file in files])
        in_order = np.array_equal(order, np.arange(order[0], order[0] + len(order)))  # then a view is enough
        pixels = arrays["images"][order[0] : order[0] + len(order)] if in_order else arrays["images"][order]
        splits[part] = Split(pixels, _labels(files, placed, names), _columns(files, placed))
    ending = next((suffix for suffix in TAR_SUFFIXES if where.name.lower().endswith(suffix)), "")
    return _with_test(where.name[: len(where.name) - len(ending)], splits, names, test_fraction, seed)


def _with_test(name: str, splits: dict[str, Split], names: tuple[str, ...], test_fraction: float, seed: int) -> Dataset:
    """The data set of these parts; without a test part, a stratified share of the training part is held out."""
    if "test" not in splits:
        train, test = stratified_split(splits["train"].labels, test_fraction, seed)
        splits["train"], splits["test"] = splits["train"].subset(train), splits["train"].subset(test)
    return Dataset(name, splits["train"], splits["test"], len(names), names, splits.get("validation"))
