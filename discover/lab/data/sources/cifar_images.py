"""CIFAR-10 and CIFAR-100 re-encoded as pictures: class folders of JPEG or PNG, as a folder or in a tar."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from discover.lab.data.dataset import Dataset
from discover.lab.data.errors import DataError
from discover.lab.data.sources.archives import is_tar, read_tar
from discover.lab.data.sources.folders import load_folder

_KINDS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG"}
_CLASSES = {"cifar10": 10, "cifar100": 100}
_TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}


def picture_kind(path: Path) -> str | None:
    """`JPEG` or `PNG` if there are class folders of such pictures at ``path``, None for anything else.

    Only names are looked at, and of a tar only what comes before its first picture.
    """
    for name in _first_names(path):
        parts = PurePosixPath(name).parts
        kind = _KINDS.get(PurePosixPath(name).suffix.lower())
        if kind is not None and len(parts) >= 2:
            return kind
    return None


def load_cifar_images(name: str, path: Path, kind: str) -> Dataset:
    """CIFAR from class folders; its name says that the pixels went through another encoding.

    Args:
        name: "cifar10" or "cifar100".
        path: the folder, or a tar of it.
        kind: what :func:`picture_kind` found.

    Raises:
        DataError: the classes or the size of the images are not CIFAR's.
    """
    dataset = load_folder(path)
    if dataset.num_classes != _CLASSES[name]:
        raise DataError(f"{path} has {dataset.num_classes} class folders where {name} has {_CLASSES[name]} classes")
    if dataset.example_shape != (32, 32, 3):
        raise DataError(f"{path} has images of shape {dataset.example_shape} where {name} has (32, 32, 3)")
    return replace(dataset, name=f"{_TITLES[name]} ({kind})")


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
