"""Where data comes from: `load("digits")`, and the same call for everything else."""

from __future__ import annotations

import os

import numpy as np

from discover.data.arrays import load_npz
from discover.data.dataset import Dataset, Split, stratified_split
from discover.data.errors import DataError, check_choice

SOURCES = ("digits", "npz")


def load(source: str = "digits", path: str | os.PathLike[str] | None = None, **options) -> Dataset:
    """The data set of a source, by name.

    Args:
        source: "digits" or "npz".
        path: where the data is; "digits" needs none.
        options: passed on to the source.
    """
    check_choice("data source", source, SOURCES)
    if source == "digits":
        return digits(**options)
    if path is None:
        raise DataError("source 'npz' needs path=…, a .npz file")
    return load_npz(path, **options)


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
