"""Where data comes from: `load("digits")`, and the same call for everything else."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from discover.lab.data.dataset import Dataset, Split, stratified_split
from discover.lab.data.errors import DataError, DatasetNotFoundError, check_choice
from discover.lab.data.sources.arrays import load_npz
from discover.lab.data.sources.cifar import load_cifar
from discover.lab.data.sources.cifar_images import load_cifar_images, picture_kind
from discover.lab.data.sources.folders import load_folder


def load(
    source: str = "digits", path: str | os.PathLike[str] | None = None, *, lazy: bool = False, **options
) -> Dataset:
    """The data set of a source, by name.

    | source | what it is | `path` | options |
    |---|---|---|---|
    | "digits" | 1,797 handwritten digits, embedded | none | `test_fraction`, `seed` |
    | "cifar10", "cifar100" | official files (binary, Python), or class folders of pictures | archive or folder | |
    | "folder" | class folders of images, or a tar of them | folder or tar | those of `load_folder` |
    | "npz" | plain arrays | file | `test_fraction`, `seed` |

    Without a path, CIFAR is looked for in `$DISCOVER_DATA`, else in `.data`.

    Args:
        source: one of the names above.
        path: where the data is.
        lazy: read images when they are asked for, from the sources that can: folders, and uncompressed `.npz` files.
        options: passed on to the source.

    Returns:
        A `Dataset`, in memory.

    Raises:
        DatasetNotFoundError: if the files are not there; it says what was looked for, and where it can be had.
        DataError: if the source, an option or the data is not as it must be.

    >>> load("digits").train
    Split(1438 examples, images uint8[8, 8, 1])
    """
    check_choice("data source", source, SOURCES)
    read = SOURCES[source]
    known = [p.name for p in inspect.signature(read).parameters.values() if p.kind is p.KEYWORD_ONLY]
    if "lazy" in known:
        known.remove("lazy")
        read = functools.partial(read, lazy=lazy)
    for option in options:
        if not known:
            raise DataError(f"source {source!r} takes no options, got {option!r}")
        check_choice(f"option of source {source!r}", option, known)
    if source == "digits":
        if path is not None:
            raise DataError(f"source 'digits' is embedded and takes no path, got {str(path)!r}")
        return digits(**options)
    if path is None and source in ("folder", "npz"):
        raise DataError(f"source {source!r} needs path=…")
    return read(data_dir() if path is None else path, **options)


def data_dir() -> Path:
    """Where data sets are looked for when no path is given: `$DISCOVER_DATA`, else `.data` in the current folder."""
    return Path(os.environ.get("DISCOVER_DATA") or ".data")


def digits(*, test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """1,797 real handwritten digits of 8×8 pixels, embedded in scikit-learn: no download.

    Pixel values 0…16 are stretched to 0…255. There is no official test split: a stratified fifth is held out.
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = np.rint(np.asarray(pixels).reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    everything = Split(images, np.asarray(labels).astype(np.int32))
    train, test = stratified_split(everything.labels, test_fraction, seed)
    return Dataset("digits", everything.subset(train), everything.subset(test), 10)


def cifar10(path: str | os.PathLike[str]) -> Dataset:
    """CIFAR-10: 60,000 images of 32×32 pixels in 10 classes, in an official form or as class folders of pictures."""
    return _cifar("cifar10", Path(path))


def cifar100(path: str | os.PathLike[str]) -> Dataset:
    """CIFAR-100: 60,000 images of 32×32 pixels in 100 classes; with 20 superclasses in the official forms."""
    return _cifar("cifar100", Path(path))


def _cifar(name: str, path: Path) -> Dataset:
    """The official files where they are; else class folders of pictures, in a folder or a tar."""
    if path.is_dir():
        try:
            return load_cifar(name, path)
        except DatasetNotFoundError:
            kind = picture_kind(path)
            if kind is None:
                raise
    else:
        kind = picture_kind(path)
    return load_cifar(name, path) if kind is None else load_cifar_images(name, path, kind)


SOURCES: dict[str, Callable[..., Dataset]] = {
    "digits": digits,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "folder": load_folder,
    "npz": load_npz,
}
