"""What a source gives: a `Dataset` of `Split`s."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discover.lab.data.errors import DataError
from discover.lab.data.lazy_examples import Examples, LazyExamples
from discover.lab.data.randomness import permutations, stream
from discover.lab.text import printable


@dataclass(frozen=True, eq=False)
class Split:
    """Examples with their labels, and any further columns that say something about each example.

    Attributes:
        images: uint8 [n, H, W, C], float features [n, d], or the bytes of text, uint8 [n, L]: an array, or
            `LazyExamples`, which are read when they are asked for.
        labels: int32 [n], the class of each example.
        columns: further arrays [n, …] by name, for example a superclass, a domain or an embedding.
        text: whether the examples are text; where one is shorter than L, zeros follow it.
    """

    images: Examples
    labels: NDArray[np.int32]
    columns: Mapping[str, NDArray] = field(default_factory=dict)
    text: bool = False

    def __post_init__(self):
        images = self.images if isinstance(self.images, LazyExamples) else np.asarray(self.images)
        labels = np.asarray(self.labels)
        if images.ndim not in (2, 4):
            raise DataError(f"images must have shape [n, H, W, C] or [n, d], got {images.shape}")
        if images.ndim == 4 and images.dtype != np.uint8:
            raise DataError(f"images of shape [n, H, W, C] must be uint8, got {images.dtype}")
        if self.text and (images.ndim != 2 or images.dtype != np.uint8):
            raise DataError(f"text must be bytes, uint8 [n, L], got {images.dtype} of shape {images.shape}")
        if images.ndim == 2 and not self.text and not np.issubdtype(images.dtype, np.floating):
            images = np.asarray(images).astype(np.float32)
        if isinstance(images, np.ndarray) and images.dtype.kind == "f" and not np.isfinite(images).all():
            row, column = np.argwhere(~np.isfinite(images))[0]
            where = f"row {row}, column {column} (both count from 0)"
            raise DataError(f"features must be finite numbers, got {images[row, column]} in {where}")
        if labels.ndim != 1 or len(labels) != len(images):
            raise DataError(f"labels must have shape [{len(images)}], one for each example, got {labels.shape}")
        if not np.issubdtype(labels.dtype, np.integer):
            raise DataError(f"labels must be integers, got {labels.dtype}")
        if len(labels) and labels.min() < 0:
            raise DataError(f"labels must not be negative, got {labels.min()}")
        if len(labels) and labels.max() > np.iinfo(np.int32).max:
            raise DataError(f"labels must be class numbers below 2³¹, got {labels.max()}")
        if 0 in images.shape[1:]:
            raise DataError(f"examples must have at least one feature, got shape {images.shape}")
        columns = {name: np.asarray(values) for name, values in self.columns.items()}
        for name, values in columns.items():
            if values.ndim == 0 or len(values) != len(labels):
                raise DataError(f"column {name!r} must have {len(labels)} rows, got shape {values.shape}")
        object.__setattr__(self, "images", images)
        object.__setattr__(self, "labels", labels.astype(np.int32))
        object.__setattr__(self, "columns", columns)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        extra = f", columns={sorted(self.columns)}" if self.columns else ""
        return f"Split({len(self)} examples, images {self.images.dtype}{list(self.images.shape[1:])}{extra})"

    def subset(self, indices: ArrayLike) -> Split:
        """The examples at `indices`, in that order."""
        indices = np.asarray(indices)
        columns = {name: values[indices] for name, values in self.columns.items()}
        images = self.images.take(indices) if isinstance(self.images, LazyExamples) else self.images[indices]
        return Split(images, self.labels[indices], columns, self.text)

    def hold(self, indices: NDArray[np.integer]) -> Split:
        """The same examples, of which the images of those at `indices` (sorted) are held in memory and no others."""
        images = self.images if isinstance(self.images, LazyExamples) else LazyExamples.of_array(self.images)
        return Split(images.hold(indices), self.labels, self.columns, self.text)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test split, and where it was asked for a validation split.

    Attributes:
        name: what it is called in tables.
        train: the examples to learn from.
        test: the examples to report on.
        num_classes: the number of classes.
        class_names: the name of each class.
        validation: the examples to choose hyperparameters by, if `split_validation` set some aside.
        next_byte: whether what is learned of a text is each next byte, and not its label.
    """

    name: str
    train: Split
    test: Split
    num_classes: int
    class_names: tuple[str, ...] = ()
    validation: Split | None = None
    next_byte: bool = False

    def __post_init__(self):
        if self.next_byte and not (self.train.text and self.num_classes == 256):
            raise DataError(f"the next byte is one of 256, of text, got {self.num_classes} classes")
        object.__setattr__(self, "name", printable(str(self.name)))
        if self.num_classes < 1:
            raise DataError(f"num_classes must be at least 1, got {self.num_classes}")
        names = tuple(printable(str(name)) for name in self.class_names or range(self.num_classes))
        if len(names) != self.num_classes:
            raise DataError(f"class_names must have {self.num_classes} entries, one for each class, got {len(names)}")
        object.__setattr__(self, "class_names", names)
        if len(self.train) == 0:
            raise DataError(f"the training split of {self.name} is empty")
        for part, split in (("train", self.train), ("test", self.test), ("validation", self.validation)):
            if split is not None and len(split) and split.labels.max() >= self.num_classes:
                largest = split.labels.max()
                raise DataError(f"{part} labels must be below num_classes = {self.num_classes}, got {largest}")
            if split is not None and len(split) and split.images.shape[1:] != self.train.images.shape[1:]:
                shapes = f"{split.images.shape[1:]} against {self.train.images.shape[1:]}"
                raise DataError(f"{part} and train examples must have one shape, got {shapes}")

    @property
    def example_shape(self) -> tuple[int, ...]:
        """The shape of one example: (H, W, C) or (d,)."""
        return tuple(self.train.images.shape[1:])

    def split_validation(self, fraction: float = 0.1, seed: int = 0) -> Dataset:
        """Set a stratified share of the training split aside as the validation split; the same seed takes the same.

        >>> from discover.lab.data import load
        >>> digits = load("digits").split_validation(0.1)
        >>> len(digits.train), len(digits.validation)
        (1294, 144)
        """
        if self.validation is not None:
            raise DataError(f"{self.name} already has a validation split of {len(self.validation)} examples")
        kept, taken = stratified_split(self.train.labels, fraction, seed)
        return dataclasses.replace(self, train=self.train.subset(kept), validation=self.train.subset(taken))


def stratified_split(labels: NDArray, fraction: float, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide 0…n−1 in two, each class as near to the same share as whole examples allow.

    The second part has round(fraction·n) examples; a class of m examples gives it ⌊fraction·m⌋ or ⌈fraction·m⌉ of them,
    the classes with the largest remainders the higher number.

    Returns:
        Two sorted index arrays, disjoint, together all of 0…n−1.
    """
    labels = np.asarray(labels)
    if not 0.0 < fraction < 1.0:
        raise DataError(f"fraction must lie strictly between 0 and 1, got {fraction!r}")
    total = round(fraction * len(labels))
    if not 0 < total < len(labels):
        raise DataError(f"a share of {fraction} of {len(labels)} examples leaves one side empty")
    classes, counts = np.unique(labels, return_counts=True)
    exact = counts * (total / len(labels))
    quota = np.floor(exact).astype(int)
    order = np.argsort(-(exact - quota), kind="stable")
    quota[order[: total - quota.sum()]] += 1
    by_class, ends = np.argsort(labels, kind="stable"), np.cumsum(counts)
    whole = np.repeat(quota == counts, counts)  # classes that are taken whole, or not at all, need no drawing
    taken = [by_class[whole]]
    for k in np.flatnonzero((quota > 0) & (quota < counts)):
        size = int(counts[k])
        members = by_class[ends[k] - size : ends[k]]
        taken.append(members[permutations(stream(seed, "split", int(classes[k])), 1, size)[0][: quota[k]]])
    second = np.sort(np.concatenate(taken))
    first = np.setdiff1d(np.arange(len(labels)), second, assume_unique=True)
    return first, second
