"""CIFAR-10 and CIFAR-100 in both official forms, binary and Python, and as class folders of pictures.

Each as a folder or in a tar: the downloaded `.tar.gz`, or one of pictures.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from discover.lab.data.dataset import Dataset, Split
from discover.lab.data.errors import ArchiveError, DataError, DatasetNotFoundError
from discover.lab.data.limits import honest_size, most_bytes, read_ordinary
from discover.lab.data.sources.archives import is_tar, read_tar
from discover.lab.data.sources.folders import load_folder
from discover.lab.data.sources.pickles import as_text, read_pickle

HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
_PIXELS = 3072
_PICTURES = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG"}


@dataclass(frozen=True)
class _Form:
    """One of the official layouts: the archive, the folder in it, and the files that are read."""

    archive: str
    folder: str
    train: tuple[str, ...]
    test: str
    names: tuple[str, ...]

    @property
    def binary(self) -> bool:
        return self.test.endswith(".bin")


_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_BINARY = tuple(f"{name}.bin" for name in _BATCHES)
_NAMES = ("fine_label_names.txt", "coarse_label_names.txt")
_FORMS = {
    "cifar10": (
        _Form("cifar-10-binary.tar.gz", "cifar-10-batches-bin", _BINARY, "test_batch.bin", ("batches.meta.txt",)),
        _Form("cifar-10-python.tar.gz", "cifar-10-batches-py", _BATCHES, "test_batch", ("batches.meta",)),
    ),
    "cifar100": (
        _Form("cifar-100-binary.tar.gz", "cifar-100-binary", ("train.bin",), "test.bin", _NAMES),
        _Form("cifar-100-python.tar.gz", "cifar-100-python", ("train",), "test", ("meta",)),
    ),
}
_KEYS = {"cifar10": ("labels",), "cifar100": ("fine_labels", "coarse_labels")}
_NAME_KEYS = {"cifar10": ("label_names",), "cifar100": ("fine_label_names", "coarse_label_names")}


def cifar10(path: str | os.PathLike[str] | None = None) -> Dataset:
    """CIFAR-10: 60,000 images of 32×32 pixels in 10 classes.

    Args:
        path: the official archive, the folder that was in it, a folder that holds either, or class folders of pictures
            (in a tar, too). If absent, `$DISCOVER_DATA`, else `.data` in the current folder.
    """
    return _load("cifar10", path)


def cifar100(path: str | os.PathLike[str] | None = None) -> Dataset:
    """CIFAR-100: 60,000 images of 32×32 pixels in 100 classes; in the official forms with the 20 "superclass"es.

    See `cifar10`.
    """
    return _load("cifar100", path)


def _load(name: str, path: str | os.PathLike[str] | None) -> Dataset:
    """The official files where they are; else class folders of pictures."""
    where = Path(os.environ.get("DISCOVER_DATA") or ".data") if path is None else Path(path)
    try:
        if where.is_dir() or not _picture_kind(where):
            return _load_official(name, where)
    except DatasetNotFoundError:
        if not _picture_kind(where):
            raise
    return _load_pictures(name, where)


# -- the official forms -----------------------------------------------------------------------------------------------


def _load_official(name: str, path: Path) -> Dataset:
    form, read, where = _find(name, path)
    names = _read_names(name, form, read, where)
    splits, counts = [], {}
    for files in (form.train, (form.test,)):
        parts = [_read_part(name, form, read(file), f"{where}/{file}") for file in files]
        counts |= {file: len(pixels) for file, (pixels, _) in zip(files, parts)}
        pixels = np.concatenate([pixels for pixels, _ in parts])
        labels = np.concatenate([labels for _, labels in parts], axis=1)  # the class, and CIFAR-100's superclass
        for what, ids, known in zip(("label", "superclass"), labels, names):
            if ids.max() >= len(known):
                kind = "classes" if what == "label" else "superclasses"
                raise ArchiveError(f"{where} has {what} {ids.max()}, but names only {len(known)} {kind}")
        columns = {"superclass": np.array(names[1])[labels[1]]} if len(labels) > 1 else {}
        images = np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))  # planes to pixels
        splits.append(Split(images, labels[0], columns))
    _check_counts(form, counts, where)
    return Dataset(name, splits[0], splits[1], len(names[0]), names[0])


def _find(name: str, path: Path) -> tuple[_Form, Callable[[str], bytes], str]:
    """The form that is there, a function that reads one of its files, and where it was found."""
    forms = _FORMS[name]
    if path.is_file() and is_tar(path):
        most = most_bytes(honest_size(path))
        contents = {PurePosixPath(file).name: data for file, data in read_tar(path, most)}
        for form in forms:
            if form.test in contents:
                missing = [file for file in (*form.train, *form.names) if file not in contents]
                if missing:
                    raise ArchiveError(f"{path} lacks {missing[0]}")
                return form, contents.__getitem__, str(path)
        raise ArchiveError(f"{path} holds neither {forms[0].test} nor {forms[1].test}: it is not {name}")
    for folder, form in [(path, form) for form in forms] + [(path / form.folder, form) for form in forms]:
        if (folder / form.test).is_file():
            missing = [file for file in (*form.train, *form.names) if not (folder / file).is_file()]
            if missing:
                raise DatasetNotFoundError(f"{folder} lacks {missing[0]}; {name} can be had at {HOME}")
            return form, lambda file, folder=folder: read_ordinary(folder / file), str(folder)
    for form in forms:
        if (path / form.archive).is_file():
            return _find(name, path / form.archive)
    looked = ", ".join(f"{form.folder}/{form.test}, {form.archive}" for form in forms)
    raise DatasetNotFoundError(f"{name} is not in {path}: looked for {looked}; it can be had at {HOME}")


def _read_names(name: str, form: _Form, read: Callable[[str], bytes], where: str) -> list[tuple[str, ...]]:
    """The names of the classes, and of CIFAR-100's superclasses."""
    if form.binary:
        found = [as_text(read(file)).splitlines() for file in form.names]
    else:
        meta, found = read_pickle(read(form.names[0]), f"{where}/{form.names[0]}"), []
        for key in _NAME_KEYS[name]:
            names = meta.get(key) if isinstance(meta, dict) else None
            if not isinstance(names, list) or not names:
                raise ArchiveError(f"{where} is no CIFAR data set: its names have no {key}")
            found.append(names)
    return [tuple(as_text(one).strip() for one in names if as_text(one).strip()) for names in found]


def _read_part(name: str, form: _Form, contents: bytes, where: str) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """One file: pixels [n, 3072], and labels [1, n], or for CIFAR-100 [2, n] with the superclasses second."""
    keys = _KEYS[name]
    if form.binary:
        record = len(keys) + _PIXELS
        if len(contents) == 0 or len(contents) % record:
            size = f"{len(contents)} bytes is no whole number of {record}-byte records"
            raise ArchiveError(f"{where} is cut off or damaged: {size}")
        records = np.frombuffer(contents, dtype=np.uint8).reshape(-1, record)
        return records[:, len(keys) :], records[:, : len(keys)].T[::-1].astype(np.int32)
    data = read_pickle(contents, where)
    if not isinstance(data, dict) or any(key not in data for key in ("data", *keys)):
        raise ArchiveError(f"{where} is no CIFAR batch: it lacks one of data, {', '.join(keys)}")
    pixels = data["data"]
    if not isinstance(pixels, np.ndarray) or pixels.shape[1:] != (_PIXELS,):
        raise ArchiveError(f"{where} is no CIFAR batch: its data are not uint8 [n, {_PIXELS}]")
    labels = []
    for key in keys:
        values = data[key].tolist() if isinstance(data[key], np.ndarray) else data[key]
        numbers = isinstance(values, list) and all(type(value) is int and 0 <= value < 1000 for value in values)
        if not numbers or len(values) != len(pixels) or not values:
            raise ArchiveError(f"{where} is no CIFAR batch: its {key} are not {len(pixels)} classes")
        labels.append(np.array(values, np.int32))
    return pixels, np.stack(labels)


def _check_counts(form: _Form, counts: dict[str, int], where: str) -> None:
    """Refuse a file that was cut off between two images, as far as the other files give it away.

    If any file has its official number of images, all must. A smaller data set in this format has no official numbers,
    but its training files must be of one length.
    """
    official = dict.fromkeys(form.train, 50_000 // len(form.train)) | {form.test: 10_000}
    if all(counts[file] != official[file] for file in official):
        official = dict.fromkeys(form.train, max(counts[file] for file in form.train))
    for file, count in official.items():
        if counts[file] != count:
            have = f"{counts[file]} images where the other files say that there must be {count}"
            raise ArchiveError(f"{where}/{file} is cut off or damaged: it has {have}")


# -- pictures ---------------------------------------------------------------------------------------------------------


def _load_pictures(name: str, path: Path) -> Dataset:
    """CIFAR from class folders; its name says that the pixels went through another encoding."""
    dataset, classes = load_folder(path), int(name.removeprefix("cifar"))
    if dataset.num_classes != classes:
        raise DataError(f"{path} has {dataset.num_classes} class folders where {name} has {classes} classes")
    if dataset.example_shape != (32, 32, 3):
        raise DataError(f"{path} has images of shape {dataset.example_shape} where {name} has (32, 32, 3)")
    return replace(dataset, name=f"CIFAR-{classes} ({_picture_kind(path)})")


def _picture_kind(path: Path) -> str | None:
    """`JPEG` or `PNG` if there are class folders of such pictures, None for anything else, by the first names."""
    for name in map(PurePosixPath, _first_names(path)):
        kind = _PICTURES.get(name.suffix.lower())
        if kind is not None and len(name.parts) >= 2:
            return kind
    return None


def _first_names(path: Path) -> Iterator[str]:
    if path.is_dir():
        for folder in [path / "train", path]:
            for child in sorted(folder.iterdir()) if folder.is_dir() else ():
                if child.is_dir():
                    yield from (f"{child.name}/{file.name}" for file in sorted(child.iterdir())[:3])
    elif path.is_file() and is_tar(path):
        for number, (name, _) in enumerate(read_tar(path)):
            if number >= 3 or PurePosixPath(name).suffix in ("", ".bin"):  # the official files: large, and no pictures
                return
            yield name
