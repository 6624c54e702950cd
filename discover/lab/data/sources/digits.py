"""The handwritten digits that are embedded in scikit-learn."""

from __future__ import annotations

import numpy as np

from discover.lab.data.dataset import Dataset, Split, stratified_split


def load_digits(*, test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """1,797 real handwritten digits of 8×8 pixels: no download.

    Pixel values 0…16 are stretched to 0…255. There is no official test split: a stratified share is held out.
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = np.rint(np.asarray(pixels).reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    everything = Split(images, np.asarray(labels).astype(np.int32))
    train, test = stratified_split(everything.labels, test_fraction, seed)
    return Dataset("digits", everything.subset(train), everything.subset(test), 10)
