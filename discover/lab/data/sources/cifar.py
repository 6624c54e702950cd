"""CIFAR-10 and CIFAR-100 in both official forms, binary and Python, as a folder or as the downloaded `.tar.gz`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from discover.lab.data.dataset import Dataset, Split
from discover.lab.data.errors import ArchiveError, DatasetNotFoundError
from discover.lab.data.sources.archives import Limits, byte_records, is_tar, read_tar, safe_unpickle, text_lines

HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
_PIXELS = 3072
_LIMITS = Limits(file_bytes=1 << 30, total_bytes=4 << 30, files=1000)


@dataclass(frozen=True)
class _Form:
    """One of the official layouts: the archive, the folder in it, and the files that are read."""

    archive: str
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str
    coarse_names: str | None = None

    @property
    def files(self) -> tuple[str, ...]:
        extra = (self.coarse_names,) if self.coarse_names and self.coarse_names != self.names else ()
        return (*self.train, *self.test, self.names, *extra)


_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_FORMS = {
    "cifar10": (
        _Form(
            "cifar-10-binary.tar.gz",
            "cifar-10-batches-bin",
            tuple(f"{name}.bin" for name in _BATCHES),
            ("test_batch.bin",),
            "batches.meta.txt",
        ),
        _Form("cifar-10-python.tar.gz", "cifar-10-batches-py", _BATCHES, ("test_batch",), "batches.meta"),
    ),
    "cifar100": (
        _Form(
            "cifar-100-binary.tar.gz",
            "cifar-100-binary",
            ("train.bin",),
            ("test.bin",),
            "fine_label_names.txt",
            "coarse_label_names.txt",
        ),
        _Form("cifar-100-python.tar.gz", "cifar-100-python", ("train",), ("test",), "meta", "meta"),
    ),
}


def load_cifar(name: str, path: str | os.PathLike[str]) -> Dataset:
    """Read CIFAR-10 or CIFAR-100.

    CIFAR-100 has a column "superclass": the name of each image's superclass, 20 in all.

    Args:
        name: "cifar10" or "cifar100".
        path: the official archive, the folder that was in it, or a folder that holds either.

    Raises:
        DatasetNotFoundError: if neither form is there; it says what was looked for, and where it can be had.
        ArchiveError: if a file is damaged or holds what it must not.
    """
    form, read, where = _find(name, Path(path))
    binary = form.names.endswith(".txt")
    if binary:
        names = text_lines(read(form.names))
        coarse = text_lines(read(form.coarse_names)) if form.coarse_names else ()
    else:
        meta = safe_unpickle(read(form.names), f"{where}/{form.names}")
        names, coarse = _names(meta, "fine_label_names" if form.coarse_names else "label_names", where), ()
        if form.coarse_names:
            coarse = _names(meta, "coarse_label_names", where)
    splits, counts = [], {}
    for files in (form.train, form.test):
        parts = [_part(read(file), f"{where}/{file}", binary, bool(form.coarse_names)) for file in files]
        counts |= {file: len(part[0]) for file, part in zip(files, parts)}
        images = np.concatenate([part[0] for part in parts])
        labels = np.concatenate([part[1] for part in parts])
        columns = {}
        if form.coarse_names:
            groups = np.concatenate([part[2] for part in parts])
            if groups.max() >= len(coarse):
                raise ArchiveError(f"{where} has superclass {groups.max()}, but names only {len(coarse)}")
            columns["superclass"] = np.array(coarse)[groups]
        if labels.max() >= len(names):
            raise ArchiveError(f"{where} has label {labels.max()}, but names only {len(names)} classes")
        splits.append(Split(_pictures(images), labels, columns))
    _check_counts(form, counts, where)
    return Dataset(name, splits[0], splits[1], len(names), names)


def _find(name: str, path: Path) -> tuple[_Form, Callable[[str], bytes], str]:
    """The form that is there, a function that reads one of its files, and where it was found."""
    forms = _FORMS[name]
    if path.is_file() and is_tar(path):
        contents = {PurePosixPath(file).name: data for file, data in read_tar(path, _LIMITS)}
        for form in forms:
            if form.test[0] in contents:
                missing = [file for file in form.files if file not in contents]
                if missing:
                    raise ArchiveError(f"{path} lacks {missing[0]}")
                return form, contents.__getitem__, str(path)
        raise ArchiveError(f"{path} holds neither {forms[0].test[0]} nor {forms[1].test[0]}: it is not {name}")
    for folder, form in [(path, form) for form in forms] + [(path / form.folder, form) for form in forms]:
        if (folder / form.test[0]).is_file():
            missing = [file for file in form.files if not (folder / file).is_file()]
            if missing:
                raise DatasetNotFoundError(f"{folder} lacks {missing[0]}; {name} can be had at {HOME}")
            return form, lambda file, folder=folder: (folder / file).read_bytes(), str(folder)
    for form in forms:
        if (path / form.archive).is_file():
            return _find(name, path / form.archive)
    looked = ", ".join(f"{form.folder}/{form.test[0]}, {form.archive}" for form in forms)
    raise DatasetNotFoundError(f"{name} is not in {path}: looked for {looked}; it can be had at {HOME}")


def _part(
    contents: bytes, name: str, binary: bool, fine: bool
) -> tuple[NDArray[np.uint8], NDArray[np.int32], NDArray[np.int32]]:
    """One file: pixels [n, 3072], labels [n], superclasses [n] (zeros for CIFAR-10)."""
    if binary:
        before = 2 if fine else 1  # CIFAR-100: the superclass, then the class
        records = byte_records(contents, before + _PIXELS, name)
        return records[:, before:], records[:, before - 1].astype(np.int32), records[:, 0].astype(np.int32)
    data = safe_unpickle(contents, name)
    keys = ("data", "fine_labels", "coarse_labels") if fine else ("data", "labels")
    if not isinstance(data, dict) or any(key not in data for key in keys):
        raise ArchiveError(f"{name} is no CIFAR batch: it lacks one of {', '.join(keys)}")
    pixels = data["data"]
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (_PIXELS,):
        raise ArchiveError(f"{name} is no CIFAR batch: its data are not uint8 [n, {_PIXELS}]")
    labels = []
    for key in keys[1:]:
        values = np.asarray(data[key])
        if values.shape != (len(pixels),) or values.dtype.kind not in "iu" or len(values) == 0 or values.min() < 0:
            raise ArchiveError(f"{name} is no CIFAR batch: its {key} are not {len(pixels)} classes")
        labels.append(values.astype(np.int32))
    return pixels, labels[0], labels[-1]


def _check_counts(form: _Form, counts: dict[str, int], where: str) -> None:
    """Refuse a file that was cut off between two images, as far as the other files give it away.

    If any file has its official number of images, all must. A smaller data set in this format has no official numbers,
    but its training files must be of one length.
    """
    official = dict.fromkeys(form.train, 50_000 // len(form.train)) | dict.fromkeys(form.test, 10_000)
    if all(counts[file] != official[file] for file in official):
        official = dict.fromkeys(form.train, max(counts[file] for file in form.train))
    for file, count in official.items():
        if counts[file] != count:
            have = f"{counts[file]} images where the other files say that there must be {count}"
            raise ArchiveError(f"{where}/{file} is cut off or damaged: it has {have}")


def _names(meta: object, key: str, where: str) -> tuple[str, ...]:
    names = meta.get(key) if isinstance(meta, dict) else None
    if not isinstance(names, list) or not names:
        raise ArchiveError(f"{where} is no CIFAR data set: its names have no {key}")
    return text_lines(names)


def _pictures(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Rows of 1,024 reds, greens and blues as images [n, 32, 32, 3]."""
    return np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
