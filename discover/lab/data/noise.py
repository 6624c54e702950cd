"""Label noise: at every sight of an example its label may flip to another class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discover.lab.data.errors import DataError, check_at_least
from discover.lab.data.randomness import hash_uint64, scale_down


@dataclass(frozen=True)
class LabelNoise:
    """Flip a label with probability p to another class, chosen uniformly; anew at every sight of the example.

    The observed label of example i at its k-th sight is a fixed function of (seed, k, i):

        observed = label                     with probability 1 − p
                   (label + 1 + J) mod C     with probability p,  J uniform on 0…C−2

    so a flip never keeps the label, nothing needs to be stored, and a resumed run sees the same labels.

    Attributes:
        probability: p, in [0, 1].
        num_classes: C; at least 2 where p > 0.
        seed: a non-negative integer.

    >>> import numpy as np
    >>> noise = LabelNoise(1.0, num_classes=2)
    >>> noise.observe(np.array([0, 1, 1]), indices=np.arange(3), sights=0)
    array([1, 0, 0], dtype=int32)
    """

    probability: float
    num_classes: int
    seed: int = 0

    def __post_init__(self):
        if not 0.0 <= self.probability <= 1.0:
            raise DataError(f"label noise must be between 0 and 1, got {self.probability!r}")
        check_at_least("num_classes", self.num_classes, 1)
        check_at_least("seed", self.seed, 0)
        if self.probability > 0 and self.num_classes < 2:
            raise DataError("label noise needs at least 2 classes to flip between, got 1")

    def observe(self, labels: ArrayLike, indices: ArrayLike, sights: ArrayLike) -> NDArray[np.int32]:
        """The labels as they are seen.

        Args:
            labels: the true labels, int.
            indices: which examples they are, in the training split; a shape that broadcasts with `labels`.
            sights: the number of earlier sights of each example; a shape that broadcasts with `labels`.
        """
        labels = np.asarray(labels, dtype=np.int32)
        if self.probability == 0.0:
            return labels
        words = hash_uint64(self.seed, "noise", np.asarray(indices), np.asarray(sights))
        # The upper half of a word decides on the flip, the lower half on the class; p is resolved to 2⁻³².
        flips = (words >> np.uint64(32)) < np.uint64(round(self.probability * 2**32))
        other = labels + 1 + scale_down(words, self.num_classes - 1)
        other -= (other >= self.num_classes) * np.int32(self.num_classes)  # the remainder, without a division
        return np.where(flips, other, labels)

    def class_probs(self, label_probs: ArrayLike) -> NDArray[np.float64]:
        """The probability of observing each class, from the probability of each true class.

        P(observed = n) = (1 − p)·π_n + p/(C − 1)·(1 − π_n)
        """
        probs = np.asarray(label_probs, dtype=np.float64)
        if probs.shape != (self.num_classes,):
            raise DataError(f"label_probs must have shape ({self.num_classes},), got {probs.shape}")
        if self.probability == 0.0:
            return probs
        return (1 - self.probability) * probs + self.probability / (self.num_classes - 1) * (1 - probs)
