"""Examples that are read when they are asked for: for data larger than memory, or a host that needs some of it only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from discover.lab.data.errors import DataError

Read = Callable[[NDArray[np.integer]], NDArray]
"""Reads examples [k, …] by their numbers, int [k]."""


class LazyExamples:
    """Like an array of examples that is read where it is indexed: `examples[indices]`, with integers of any shape.

    Args:
        read: reads examples by their numbers.
        shape: of one example.
        dtype: of the examples.
        numbers: int [n], which number each of these examples has.
        read_to_hold: like `read`, for `hold`: it may remember what it read on disk, for the next time.

    >>> examples = LazyExamples.of_array(np.arange(12.0).reshape(6, 2)).take([5, 0, 3])
    >>> examples.shape, examples[[[2, 0]]].tolist()
    ((3, 2), [[[6.0, 7.0], [10.0, 11.0]]])
    """

    def __init__(
        self,
        read: Read,
        shape: tuple[int, ...],
        dtype: DTypeLike,
        numbers: NDArray[np.integer],
        read_to_hold: Read | None = None,
    ):
        self._read, self._numbers, self._read_to_hold = read, numbers, read_to_hold or read
        self.shape, self.dtype, self.ndim = (len(numbers), *shape), np.dtype(dtype), 1 + len(shape)

    @classmethod
    def of_array(cls, array: NDArray) -> LazyExamples:
        """The rows of an array, which may be a memory map."""

        def read(numbers: NDArray[np.integer]) -> NDArray:
            return np.ascontiguousarray(array[numbers])

        return cls(read, array.shape[1:], array.dtype, np.arange(len(array)))

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, indices: Any) -> NDArray:
        numbers = self._numbers[indices]
        different, places = np.unique(numbers, return_inverse=True)
        return self._read(different)[places.reshape(numbers.shape)]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray:
        del copy
        return np.asarray(self[np.arange(len(self))], dtype=dtype)

    def take(self, indices: ArrayLike) -> LazyExamples:
        """Some of the examples; nothing is read."""
        numbers = self._numbers[np.asarray(indices)]
        return LazyExamples(self._read, self.shape[1:], self.dtype, numbers, self._read_to_hold)

    def hold(self, indices: NDArray[np.integer]) -> LazyExamples:
        """The same examples, of which those at `indices` (sorted) are read now, and held; the others cannot be read."""
        held = self._read_to_hold(self._numbers[indices])

        def read(numbers: NDArray[np.integer]) -> NDArray:
            missing = np.setdiff1d(numbers, indices)
            if len(missing):
                raise DataError(f"example {missing[0]} is not among those that this host holds")
            return held[np.searchsorted(indices, numbers)]

        return LazyExamples(read, self.shape[1:], self.dtype, np.arange(len(self)))


Examples = NDArray | LazyExamples
"""Examples on the host, [n, …]: an array, or what is read where it is indexed."""
