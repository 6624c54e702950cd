"""Plain arrays in a `.npz` file, with any further column to cluster by."""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discover.lab.data.dataset import Dataset, Split, stratified_split
from discover.lab.data.errors import ArchiveError, DataError, DatasetNotFoundError, one_line
from discover.lab.data.lazy_examples import LazyExamples
from discover.lab.data.limits import check_bytes, honest_size, most_bytes

MAX_CLASSES = 1 << 20
"""Integer labels are class numbers, and every class up to the largest has a name, an output and maybe a momentum."""

_LAYOUTS = (
    # (training images, training labels, test images, test labels)
    ("train_images", "train_labels", "test_images", "test_labels"),
    ("x_train", "y_train", "x_test", "y_test"),
)


_IMAGES = ("images", *(layout[part] for layout in _LAYOUTS for part in (0, 2)))


def read_npz(path: str | os.PathLike[str], max_bytes: int | None = None, lazy: bool = False) -> dict[str, NDArray]:
    """All arrays of a `.npz` file; no pickles. With `lazy` those called images are memory maps, see `map_npz`.

    `max_bytes` is the most that they may take; if absent, what the file's size on the disk warrants.
    """
    path = Path(path)
    if not path.is_file():
        raise DatasetNotFoundError(f"there is no file {path}")
    try:
        most = most_bytes(honest_size(path)) if max_bytes is None else max_bytes
        with zipfile.ZipFile(path) as archive:
            members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
            kept = {name: map_npz(path, name) for name in members if lazy and name in _IMAGES}
            mapped = {name: array for name, array in kept.items() if array is not None}
            total = sum(member.file_size for member in archive.infolist())
            total -= sum(members[name].file_size for name in mapped)
        check_bytes(f"what {path} holds", total, most)
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: mapped[name] if name in mapped else file[name] for name in file.files}
    except DataError:
        raise
    except Exception as error:  # damage shows as many kinds of error, encryption and unknown compression as others
        reason = one_line(error)
        if "allow_pickle" in reason:
            reason = "it holds Python objects, which are not read"
        raise ArchiveError(f"{path} is no readable .npz file: {reason}") from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise ArchiveError(f"{path} is no readable .npz file: {name!r} in it is no array")
        if array.dtype.itemsize == 0 and array.size:  # any number of them takes no byte
            raise ArchiveError(f"{path} has {array.size} empty texts in {name!r}")
        if name in _IMAGES and array.ndim == 2 and array.dtype.kind in "iu":  # they become float32
            check_bytes(f"what {path} holds", 4 * array.size, most)
    return arrays


def map_npz(path: str | os.PathLike[str], name: str) -> NDArray | None:
    """One array of a `.npz` file as a memory map, of which only what is read is loaded; None where it is compressed."""
    with zipfile.ZipFile(path) as archive, open(path, "rb") as raw:
        entry = archive.getinfo(f"{name}.npy")
        if entry.compress_type != zipfile.ZIP_STORED:
            return None
        raw.seek(entry.header_offset + 26)  # the local header: 30 bytes, of which the last four say what comes after it
        name_length, extra_length = struct.unpack("<HH", raw.read(4))
        raw.seek(entry.header_offset + 30 + name_length + extra_length)
        version = np.lib.format.read_magic(raw)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_column, dtype = read_header(raw)
        if dtype.hasobject or not shape or 0 in shape:
            return None
        return np.memmap(path, dtype, "r", raw.tell(), shape, "F" if by_column else "C")


def load_npz(
    path: str | os.PathLike[str],
    *,
    label: str | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    lazy: bool = False,
) -> Dataset:
    """A data set from arrays.

    Two layouts are understood. With a test split: `train_images`, `train_labels`, `test_images`, `test_labels` (or
    `x_train`, `y_train`, `x_test`, `y_test`), and columns `train_<name>` with, where there is one, `test_<name>`. In
    one piece: `images`, `labels` and columns `<name>`; a stratified share is then held out as the test split.

    Images are uint8 [n, H, W, C] (or [n, H, W]) or features [n, d]. Labels are integers or strings.

    Args:
        path: the file.
        label: the array that is the label instead: `<label>`, or `train_<label>` and `test_<label>`.
        test_fraction: the share to hold out where the file has no test split.
        seed: of what is held out.
        lazy: map the images of an uncompressed file (`np.savez`) into memory instead of reading them, and read those
            that are asked for (`LazyExamples`).
    """
    arrays = read_npz(path, lazy=lazy)
    name = Path(path).stem
    for usual in _LAYOUTS:
        if usual[0] in arrays:
            layout = usual if label is None else (usual[0], f"train_{label}", usual[2], f"test_{label}")
            missing = [key for key in layout if key not in arrays]
            if missing:
                raise DataError(f"{path} has {layout[0]!r} but not {missing[0]!r}")
            parts = [arrays[key] for key in layout]
            classes, (train_labels, test_labels) = _classes(path, parts[1], parts[3])
            train = Split(_images(path, parts[0]), train_labels, _columns(arrays, "train_", layout))
            test = Split(_images(path, parts[2]), test_labels, _columns(arrays, "test_", layout))
            return Dataset(name, train, test, len(classes), classes)
    label = "labels" if label is None else label
    if "images" not in arrays or label not in arrays:
        keys = ", ".join(sorted(arrays)) or "nothing"
        raise DataError(f"{path} must hold images and {label}, or train_images, train_labels and so on; it has {keys}")
    classes, (labels,) = _classes(path, arrays[label])
    columns = {key: values for key, values in arrays.items() if key not in ("images", label)}
    everything = Split(_images(path, arrays["images"]), labels, columns)
    train, test = stratified_split(labels, test_fraction, seed)
    return Dataset(name, everything.subset(train), everything.subset(test), len(classes), classes)


def _images(path: str | os.PathLike[str], images: NDArray) -> Any:
    mapped = isinstance(images, np.memmap)
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim not in (2, 4) or images.dtype.kind not in "iuf":
        got = f"{images.dtype} of shape {images.shape}"
        raise DataError(f"images in {path} must be uint8 [n, H, W, C] or numbers [n, d], got {got}")
    if 0 in images.shape[1:]:
        raise DataError(f"images in {path} must have at least one feature, got shape {images.shape}")
    return LazyExamples.of_array(images) if mapped else images


def _classes(path: str | os.PathLike[str], *labels: NDArray) -> tuple[tuple[str, ...], list[NDArray[np.int32]]]:
    """The class names, and each label array as class ids: strings by their sorted order, integers as they are."""
    labels = tuple(np.squeeze(part, 1) if part.ndim == 2 and part.shape[1] == 1 else part for part in labels)
    together = np.concatenate(labels) if all(part.ndim == 1 for part in labels) else np.zeros(0)
    if not len(together) or together.dtype.kind not in "iuU":
        raise DataError(f"labels in {path} must be one integer or string per example, got {labels[0].dtype}")
    if together.dtype.kind == "U":
        names, ids = np.unique(together, return_inverse=True)
        cuts = np.cumsum([len(part) for part in labels])[:-1]
        return tuple(str(name) for name in names), [part.astype(np.int32) for part in np.split(ids, cuts)]
    if min(part.min() for part in labels if len(part)) < 0:
        raise DataError(f"labels in {path} must not be negative, got {together.min()}")
    if (largest := max(int(part.max()) for part in labels if len(part))) >= MAX_CLASSES:
        below = f"must be class numbers below {MAX_CLASSES}"
        raise DataError(f"labels in {path} {below}, got {largest}: number the classes 0, 1, …, or give their names")
    return tuple(str(c) for c in range(int(together.max()) + 1)), [part.astype(np.int32) for part in labels]


def _columns(arrays: dict[str, NDArray], prefix: str, layout: tuple[str, ...]) -> dict[str, NDArray]:
    """The columns of one part, with the prefix taken off."""
    return {key.removeprefix(prefix): arrays[key] for key in arrays if key.startswith(prefix) and key not in layout}
